"""Convolutions in training: the operators on the AMX unit (cpu_kernels/convolution.h) and the graph around them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cpu_features import HAS
from torch import nn

import flashover

own = torch.ops.flashover
needs_amx = pytest.mark.skipif(not HAS[torch.bfloat16], reason="no AMX here")

# batch, in, size, out, kernel, stride, padding, dilation, groups
CASES: list[tuple[Any, ...]] = [
    (1, 32, (8, 8), 32, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (3, 40, (7, 9), 70, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (2, 33, (17, 12), 17, (3, 3), (2, 2), (1, 1), (1, 1), 1),
    (2, 64, (15, 15), 48, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    (1, 20, (9, 21), 16, (5, 3), (2, 1), (2, 0), (1, 2), 1),
    (1, 20, (13, 11), 16, (3, 3), (3, 2), (0, 3), (2, 1), 1),
    (2, 16, (8, 8), 100, (2, 2), (2, 2), (0, 0), (1, 1), 1),
    (2, 300, (7, 7), 64, (3, 3), (1, 1), (2, 2), (2, 2), 1),
    (1, 900, (24, 24), 24, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (2, 24, (40, 3), 24, (7, 1), (1, 1), (3, 0), (1, 1), 1),
    (1, 64, (4, 4), 64, (4, 4), (1, 1), (0, 0), (1, 1), 1),
    (2, 32, (6, 6), 32, (3, 3), (4, 4), (1, 1), (1, 1), 1),
    (2, 8, (5, 1), 16, (5, 5), (1, 1), (4, 4), (1, 1), 1),
    (2, 96, (10, 10), 64, (3, 3), (1, 2), (1, 1), (1, 1), 2),
    (2, 20, (1, 5), 40, (3, 3), (2, 3), (1, 1), (1, 1), 1),
    (1, 20, (1, 1), 16, (2, 1), (4, 2), (2, 1), (3, 1), 1),
    (2, 5, (9, 8), 5, (3, 3), (2, 2), (1, 1), (1, 1), 5),
    (3, 4, (7, 7), 4, (7, 7), (1, 1), (3, 3), (1, 1), 4),
    (1, 3, (11, 40), 3, (5, 3), (3, 1), (0, 2), (2, 3), 3),
]


def ordinary(x: Any, w: Any, b: Any, case: tuple[Any, ...]) -> torch.Tensor:
    *_, stride, padding, dilation, groups = case
    return torch.ops.aten.convolution(x, w, b, stride, padding, dilation, False, [0, 0], groups)


def gradients(g: Any, x: Any, w: Any, case: tuple[Any, ...]) -> list[torch.Tensor]:
    *_, stride, padding, dilation, groups = case
    mask = [True, True, False]
    back = torch.ops.aten.convolution_backward
    return back(g, x, w, None, stride, padding, dilation, False, [0, 0], groups, mask)[:2]


def own_gradients(g: Any, x: Any, w: Any, case: tuple[Any, ...]) -> list[torch.Tensor]:
    how = case[5:]
    into = own.convolution_input_gradient(g, w, x.shape, *how)
    return [into, own.convolution_weight_gradient(g, x, w.shape, *how)]


def make(case: tuple[Any, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    n, i, size, o, kernel, *_, groups = case
    gen = torch.Generator().manual_seed(7)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen).to(dtype)

    return randn(n, i, *size), randn(o, i // groups, *kernel), randn(o)


def error(x: torch.Tensor, exact: torch.Tensor) -> float:
    return float((x.double() - exact).norm() / exact.norm().clamp_min(1e-300))


@needs_amx
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_operators(case: tuple[Any, ...], dtype: torch.dtype, threads: int) -> None:
    x, w, b = make(case, dtype)
    exact = ordinary(x.double(), w.double(), b.double(), case)
    g = torch.randn(exact.shape, generator=torch.Generator().manual_seed(8)).to(dtype)
    exacts = [exact, *gradients(g.double(), x.double(), w.double(), case)]
    eager = [ordinary(x, w, b, case), *gradients(g, x, w, case)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        mine = [own.convolution(x, w, b, *case[5:]), *own_gradients(g, x, w, case)]
    finally:
        torch.set_num_threads(before)
    for m, e, reference in zip(mine, eager, exacts, strict=True):
        assert m.shape == e.shape and m.stride() == e.stride() and m.dtype == e.dtype
        assert error(m, reference) <= 2 * error(e, reference) + 1e-7


@needs_amx
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38, 1e-30])
@pytest.mark.parametrize("operand", ["x", "w", "g"])
def test_numbers_out_of_range(operand: str, value: float) -> None:
    case = CASES[1]
    x, w, _ = make(case, torch.float32)
    g = torch.randn_like(ordinary(x, w, None, case))
    spoilt = {"x": x, "w": w, "g": g}[operand]
    if value == 1e-30:
        spoilt.mul_(value)  # results are tiny as well, and exact
    else:
        spoilt[0, 3, 1, 1] = value
    mine = [own.convolution(x, w, None, *case[5:]), *own_gradients(g, x, w, case)]
    eager = [ordinary(x, w, None, case), *gradients(g, x, w, case)]
    for m, e in zip(mine, eager, strict=True):
        torch.testing.assert_close(m, e, rtol=1e-4, atol=float(e[e.isfinite()].abs().max()) * 1e-5, equal_nan=True)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.wide = nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.deep = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.point = nn.Conv2d(64, 128, 1)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(128, 32, 2, stride=2)
        self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.wide(self.stem(x).relu())
        x = torch.nn.functional.silu(self.norm(x))
        x = self.pool(self.point(self.deep(x) + x))
        return self.grouped(self.up(x))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("autocast", [False, True])
def test_training(layout: torch.memory_format, autocast: bool) -> None:
    torch.manual_seed(0)
    model = Block().to(memory_format=layout)
    x0 = torch.randn(2, 3, 24, 20).to(memory_format=layout)

    def step(f: Any, x: torch.Tensor, cast: bool) -> list[torch.Tensor]:
        x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        model.zero_grad()
        model.norm.reset_running_stats()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            y = f(x)
        (y.float() if cast else y).square().mean().backward()
        return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]  # type: ignore

    eager = step(model, x0, autocast)
    compiled = flashover.compile(model, fullgraph=True)
    mine = step(compiled, x0, autocast)
    model.double()
    exact = step(model, x0.double(), False)
    for m, e, reference in zip(mine, eager, exact, strict=True):
        assert m.stride() == e.stride() and m.dtype == e.dtype
        assert error(m, reference) <= 2 * error(e, reference) + (2e-2 if autocast else 1e-5)
