"""Inputs and parts that share memory: what is written through one is read through the other, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import whole

import flashover

X = torch.linspace(-2, 2, 2 * 8 * 16).reshape(2, 8, 16)


def test_an_input_is_written_while_others_share_memory() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        w.add_(1)
        return a @ b + w

    fast = flashover.compile(f, fullgraph=True)
    whole = torch.randn(4, 4)
    with torch.no_grad():
        for a, b in ((whole, whole.t()), (whole, whole.t()), (whole.clone(), whole.t()), (whole[:, :], whole.t())):
            w, v = torch.zeros(4), torch.zeros(4)
            torch.testing.assert_close(fast(a, b, w), f(a, b, v))
            assert torch.equal(v, w)
        lenient = flashover.compile(f)
        for _ in range(2):
            for shared in (False, True, False):  # what is written is shared too: that call runs eager
                x, y = torch.eye(4), torch.eye(4)
                w, v = (x[0], y[0]) if shared else (x[0].clone(), y[0].clone())
                torch.testing.assert_close(lenient(x, whole, w), f(y, whole, v))
                assert torch.equal(x, y)


def test_parts_of_one_memory_in_place() -> None:
    """A part of a tensor written from another part: ATen's check compares addresses that a trace has not."""

    def f(x: torch.Tensor) -> Any:
        y = x * 2
        y[:2].add_(y[2:4])
        a, b = y[4:].reshape(-1).chunk(2)
        a.mul_(b).sigmoid_()
        x[:2].sub_(x[2:4])
        return y, x[0]

    flashover.reset()
    x, y = X[0].clone(), X[0].clone()
    for got, want in zip(flashover.compile(f, fullgraph=True)(x), f(y), strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(x, y, rtol=0, atol=0)


Tensor = torch.Tensor


def x() -> Tensor:
    return torch.arange(12.0).reshape(3, 4) * 0.1


def _rows(b: Tensor) -> tuple[Tensor, ...]:
    return b[0], b, b[1]


def _columns(b: Tensor) -> tuple[Tensor, ...]:
    return b[:, :2], b[:, 2:], torch.ones(3, 2)


def _the_same(b: Tensor) -> tuple[Tensor, ...]:
    return b, b.view(12), b.detach()[1:]


@pytest.mark.parametrize("inputs", [_rows, _columns, _the_same])
def test_inputs_that_share_memory_are_written(inputs: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    def f(a: Tensor, b: Tensor, c: Tensor) -> Any:
        b.mul_(2)
        a.add_(1)
        seen = a * 3, b.sum(), c + 1
        c.neg_()
        return *seen, a.sum(), b[1:]

    base, plain = x(), x()
    got, want = whole(f)(*inputs(base)), f(*inputs(plain))
    torch.testing.assert_close((got, base), (want, plain))
