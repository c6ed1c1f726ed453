"""Strides of results are eager's, whatever the operands' are: the whole Fourier family over random dims, sizes and
layouts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from trace_tools import Program, trace, type_text

import flashover

ONE_DIM = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
MANY_DIMS = [
    "fft2",
    "ifft2",
    "rfft2",
    "irfft2",
    "hfft2",
    "ihfft2",
    "fftn",
    "ifftn",
    "rfftn",
    "irfftn",
    "hfftn",
    "ihfftn",
]


def laid_out(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """The tensor's values permuted, sliced out of a larger one, or as they are."""
    match rng.randrange(4):
        case 0:
            return t.permute(rng.sample(range(t.dim()), t.dim()))
        case 1:
            big = t.repeat_interleave(2, dim=rng.randrange(t.dim()))
            return big.transpose(0, -1)[1:].transpose(0, -1) if big.shape[-1] > 2 else big
        case 2:
            return t.permute(rng.sample(range(t.dim()), t.dim())).contiguous().transpose(0, -1)
    return t


def transform(name: str, rng: random.Random) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """A call of torch.fft with random arguments, and its operand."""
    rank = rng.randint(2, 4)
    real_only = name.startswith(("rfft", "ihfft"))
    dtype = torch.float32 if real_only or rng.random() < 0.5 else torch.complex64
    x = laid_out(torch.randn([rng.randint(2, 5) for _ in range(rank)], dtype=dtype), rng)
    how: dict[str, Any] = {"norm": rng.choice([None, "ortho", "forward", "backward"])}
    if name in ONE_DIM:
        how |= {"dim": rng.randrange(-x.dim(), x.dim()), "n": rng.choice([None, rng.randint(2, 7)])}
    else:
        count = 2 if name.endswith("2") else rng.randint(1, x.dim())
        dims = rng.sample(range(x.dim()), count)
        how["dim"] = [d - x.dim() if rng.random() < 0.5 else d for d in dims]
        if rng.random() < 0.4:
            how["s"] = [rng.randint(2, 7) for _ in dims]
    return lambda t: getattr(torch.fft, name)(t, **how), x


@pytest.mark.parametrize("name", ONE_DIM + MANY_DIMS)
def test_fourier_transforms(name: str) -> None:
    rng = random.Random(name)
    for i in range(40):
        f, x = transform(name, rng)
        wanted = f(x)
        if wanted.is_conj():
            continue
        (promised,) = trace(Program(f, (x,))).output_types
        assert promised == type_text(wanted), (i, x.shape, x.stride())
        if i < 3:
            got = flashover.compile(f)(x)
            assert got.stride() == wanted.stride()
            torch.testing.assert_close(got, wanted)
