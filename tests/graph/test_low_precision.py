"""Products of few rows with weights of 8 and 4 bits: sums that unpack them, against f64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flashover


def int8(dtype: torch.dtype) -> Tensor:
    return torch.randint(-128, 128, (192, 320), dtype=torch.int8)


def uint8(dtype: torch.dtype) -> Tensor:
    return torch.randint(0, 256, (192, 320), dtype=torch.uint8)


def float8(dtype: torch.dtype) -> Tensor:
    return torch.randn(192, 320).to(torch.float8_e4m3fn)


UNPACKED: dict[str, tuple[Callable[[torch.dtype], Tensor], Callable[[Tensor, torch.dtype], Tensor]]] = {
    "int8": (int8, lambda w, dtype: w.to(dtype).t()),
    "int8 of the transposed": (int8, lambda w, dtype: w.t().to(dtype)),
    "uint8": (uint8, lambda w, dtype: w.t().to(dtype)),
    "groups": (int8, lambda w, dtype: ((w.view(192, 10, 32).to(dtype) - 3) * 0.5).view(192, 320).t()),
    "float8": (float8, lambda w, dtype: (w.float() * 0.5).to(dtype).t()),
    "nibbles": (uint8, lambda w, dtype: torch.stack([w & 15, w >> 4], -1).view(192, 640).to(dtype).t()),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", UNPACKED)
def test_few_rows(kind: str, dtype: torch.dtype, rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    make, unpack = UNPACKED[kind]
    w = make(dtype)
    x = torch.randn(rows, unpack(w, dtype).shape[0], dtype=dtype)
    b = torch.randn(192, dtype=dtype)

    def product(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        matrix = unpack(w, dtype)
        return torch.addmm(b, x, matrix) if bias else x @ matrix

    exact = x.double() @ unpack(w, dtype).double() + (b.double() if bias else 0)
    with torch.no_grad():
        mine = flashover.compile(product, fullgraph=True)(x, w, b)
    worst = (product(x, w, b).double() - exact).abs().max()
    assert mine.dtype == dtype and mine.stride() == (192, 1)
    assert (mine.double() - exact).abs().max() <= worst * 1.5 + exact.abs().max() * 1e-6


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool])
@pytest.mark.parametrize("size", [7, 16, 100])
def test_numbers_of_8_bits_are_read(dtype: torch.dtype, size: int) -> None:
    x = torch.arange(256 * size).remainder(251).to(torch.uint8).view(256, size)
    x = x > 100 if dtype == torch.bool else x.view(dtype)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.float() * 2, x.int() + 1

    for mine, theirs in zip(flashover.compile(function, fullgraph=True)(x), function(x), strict=True):
        assert torch.equal(mine, theirs)
