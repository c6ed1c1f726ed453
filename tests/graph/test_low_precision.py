"""Products of few rows with weights of 8 and 4 bits: sums that unpack them, against f64."""

from __future__ import annotations

import math
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
    "nibbles": (uint8, lambda w, dtype: torch.stack([w & 15, w >> 4], -1).view(-1, 640).to(dtype).t()),
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


class Packed(torch.nn.Module):
    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.unpack, columns = UNPACKED[kind][1], 384
        self.register_buffer("weight", torch.cat([UNPACKED[kind][0](dtype)] * 2))
        self.register_buffer("bias", torch.randn(columns, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.unpack(self.weight, x.dtype)).relu()


class PackedConvolution(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-9, 9, (96, 96, 3, 3), dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.conv2d(x, self.weight.to(x.dtype) * 0.125, padding=1)


def kept_bytes(module: torch.nn.Module, x: Tensor) -> int:
    """Of the tensors that are computed once and kept between calls."""
    with torch.no_grad():
        text = flashover.explain(module)(x).text("plan")
    kept = [line.split()[2] for line in text.splitlines() if line.endswith("= frozen")]
    sizes = {"f32": 4, "bf16": 2, "i8": 1, "u8": 1}
    return sum(
        sizes[t[: t.index("[")]] * math.prod(map(int, filter(None, t[t.index("[") + 1 : t.index("]")].split(","))))
        for t in kept
    )


@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [kind for kind in UNPACKED if kind != "groups"])
def test_unpacked_weights_are_not_kept(kind: str, dtype: torch.dtype, rows: int) -> None:
    """For the library, too: whoever has weights of few bits has them for the memory."""
    torch.manual_seed(0)
    module = Packed(kind, dtype)
    x = torch.randn(rows, module.unpack(module.weight, dtype).shape[0], dtype=dtype)
    assert kept_bytes(module, x) <= 4096
    with torch.no_grad():
        torch.testing.assert_close(flashover.compile(module)(x), module(x), rtol=2e-2, atol=1e-3 * x.shape[1])


def test_unpacked_weights_of_convolutions_are_not_kept() -> None:
    module, x = PackedConvolution(), torch.randn(2, 96, 20, 20)
    assert kept_bytes(module, x) <= 4096
    with torch.no_grad():
        torch.testing.assert_close(flashover.compile(module)(x), module(x), rtol=1e-4, atol=1e-3)


def test_what_is_not_unpacked_is_kept() -> None:
    linear = torch.nn.Linear(512, 512).to(torch.bfloat16)
    module = torch.nn.Sequential(linear)
    module.forward = lambda x: x @ linear.weight.float().sin().t()  # type: ignore[method-assign]
    assert kept_bytes(module, torch.randn(64, 512)) >= 512 * 512 * 4
