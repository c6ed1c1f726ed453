"""What strict_numerics fuses (graph/decompose/eagers_bits.h): each operator, and chains of them, in our kernels give
eager's bits, for ordinary numbers and for special ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import flashover

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
OPERATORS: dict[str, Program] = {
    "add": lambda x, y: x + y,
    "add a number": lambda x, y: x + 0.3,
    "sub": lambda x, y: x - y,
    "rsub": lambda x, y: 0.7 - x,
    "mul": lambda x, y: x * y,
    "mul by a number": lambda x, y: x * 0.1,
    "div": lambda x, y: x / y,
    "div by a number": lambda x, y: x / 3.0,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "relu": lambda x, y: x.relu(),
    "sign": lambda x, y: x.sign(),
    "floor": lambda x, y: x.floor(),
    "ceil": lambda x, y: x.ceil(),
    "round": lambda x, y: x.round(),
    "trunc": lambda x, y: x.trunc(),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "clamp": lambda x, y: x.clamp(-0.5, 0.5),
    "clamp by tensors": lambda x, y: x.clamp(y - 1, y + 1),
    "hardtanh": lambda x, y: torch.nn.functional.hardtanh(x),
    "threshold": lambda x, y: torch.nn.functional.threshold(x, 0.1, 3.0),
    "copysign": torch.copysign,
    "where": lambda x, y: torch.where(x > y, x, y),
    "masked_fill": lambda x, y: x.masked_fill(y < 0, 0.3),
    "nan_to_num": lambda x, y: x.nan_to_num(0.5, 3.0, -3.0),
    "amax": lambda x, y: x.amax(-1),
    "max": lambda x, y: x.max(0).values,
    "argmin": lambda x, y: x.argmin(-1),
    "any": lambda x, y: (x > y).any(-1),
    "to half and back": lambda x, y: x.half().to(x.dtype),
    "to int": lambda x, y: x.nan_to_num(0.0, 9.0, -9.0).to(torch.int32) + 1,
    "cat": lambda x, y: torch.cat([x, y[:2]]) * 2,
    "gather": lambda x, y: x.gather(1, (y > 0).long()),
    "pad": lambda x, y: torch.nn.functional.pad(x, (1, 2), value=0.1),
    "tril": lambda x, y: x.tril() + y.triu(1),
    "a chain": lambda x, y: ((x * y + x / 3.0 - 0.1) * 0.7).relu() / (y - x * 0.3) + (x - y) * x,
    "a chain with a scaled sum": lambda x, y: torch.add(x * 2, y * 3, alpha=0.3) - torch.rsub(x, y, alpha=0.7),
    "functions that stay torch's": lambda x, y: (x * 2 + y).sin().exp().sum(-1) * (y - x).sqrt().mean(),
}


def numbers(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    tiny = torch.finfo(dtype).tiny
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), tiny, tiny / 4, 0.5, 1.5, 2.5, -2.5])
    x, y = torch.randn(37, 41) * 2, torch.randn(37, 41)
    x[0, : len(special)], y[0, : len(special)] = special, special.flip(0)
    x[1, : len(special)], y[2, : len(special)] = special, special
    return x.to(dtype), y.to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_bits(name: str, dtype: torch.dtype) -> None:
    f, (x, y) = OPERATORS[name], numbers(dtype)
    got, wanted = flashover.compile(f, fullgraph=True, options={"strict_numerics": True})(x, y), f(x, y)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    same = got == wanted
    if wanted.is_floating_point():
        same &= got.signbit() == wanted.signbit()
        same |= got.isnan() & wanted.isnan()
    assert same.all(), (got[~same][:5], wanted[~same][:5])
