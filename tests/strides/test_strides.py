"""Strides of results are eager's, whatever the operands' are: the whole Fourier family over random dims, sizes and
layouts, and op_db's samples permuted, reversed, sliced and expanded (what the trace promises; the executor copies an
operator's result into that)."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from op_samples import op_db
from test_trace_ops import type_text
from torch.utils._pytree import tree_map
from trace_tools import Program, tensors_of, trace

import flashover
from flashover import _C

ONE_DIM = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
MANY_DIMS = ["fft2", "ifft2", "rfft2", "irfft2", "hfft2", "ihfft2", "fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"]


def laid_out(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """The tensor's values permuted, sliced out of a larger one, or as they are."""
    match rng.randrange(4):
        case 0:
            return t.permute(rng.sample(range(t.dim()), t.dim()))
        case 1:
            big = t.repeat_interleave(2, dim=rng.randrange(t.dim()))
            return big.transpose(0, -1)[1:].transpose(0, -1) if big.shape[-1] > 1 else big
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


def permuted(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() > 1 else t


def backwards(t: torch.Tensor) -> torch.Tensor:
    dims = list(range(t.dim()))[::-1]
    return t.permute(dims).contiguous().permute(dims)


def sliced(t: torch.Tensor) -> torch.Tensor:
    return t.repeat_interleave(2, dim=-1)[..., ::2] if t.dim() else t


def gapped(t: torch.Tensor) -> torch.Tensor:
    return torch.stack([t, t], dim=1)[:, 0] if t.dim() else t


def repeated(t: torch.Tensor) -> torch.Tensor:
    return t[:1].expand(t.shape) if t.dim() and t.shape[0] > 1 else t


ARRANGEMENTS = [permuted, backwards, sliced, gapped, repeated]
# What is in memory that nobody wrote, views whose values are lazy, results whose number of elements is data.
LEFT_OUT = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "sparse.mm"}
OPS = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu") and op.name not in LEFT_OUT]


def disagreements(op: Any, arrange: Callable[[torch.Tensor], torch.Tensor], samples: int) -> list[str]:
    """Samples for which the trace promises other types than eager's results have."""
    out = []

    def arranged(v: Any) -> Any:
        return arrange(v.detach()) if isinstance(v, torch.Tensor) and v.layout == torch.strided else v

    def fn(x: Any, rest: Any, kwargs: Any) -> Any:
        return op.op(x, *rest, **kwargs)

    for sample in islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), samples):
        args = tree_map(arranged, (sample.input, list(sample.args), dict(sample.kwargs)))
        try:
            wanted = tensors_of(fn(*tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) and op.name.endswith("_") else v, args)))
            promised = trace(Program(fn, args)).output_types
        except Exception:  # eager cannot, or the trace does not: another test's matter
            continue
        if any(t.layout != torch.strided or t.is_conj() or t.is_neg() for t in wanted):
            continue
        for text, t in zip(promised, wanted, strict=False):
            if text != type_text(t) and t.numel():
                shapes = [f"{tuple(v.shape)}{v.stride()}" for v in tensors_of(args)]
                out.append(f"{op.name} {arrange.__name__} {shapes}: promised {text}, eager {type_text(t)}")
    return out


@pytest.mark.timeout(300)
@pytest.mark.parametrize("arrange", ARRANGEMENTS, ids=lambda a: a.__name__)
def test_samples_of_some_operators(arrange: Callable[[torch.Tensor], torch.Tensor]) -> None:
    wrong = [w for op in OPS[::9] for w in disagreements(op, arrange, 4)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arrange", ARRANGEMENTS, ids=lambda a: a.__name__)
def test_samples_of_all_operators(arrange: Callable[[torch.Tensor], torch.Tensor]) -> None:
    wrong = [w for op in OPS for w in disagreements(op, arrange, 12)]
    assert not wrong, "\n".join(wrong)
