"""Subscripts of tensors by numbers that change: x[i], x[:, i:i + n] and what is written there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import comparing
import pytest
import torch

import flashover

X = torch.linspace(-2, 2, 96).reshape(12, 8)
same = functools.partial(comparing.same, offsets=True)
INTEGERS = (3, 1, 4, 2, 5, 6, 7, 0)


def frames() -> int:
    return flashover.compile_stats()["frames"]


READS = [
    lambda x, i: x[i] * 2,
    lambda x, i: x[:, i].sin(),
    lambda x, i: x[..., i, None] + x[-i - 1],
    lambda x, i: x[i : i + 2] * 2,
    lambda x, i: x[i:, :3][:2] + 1 if i < 2 else x[i : i + 2, 1:4] + 1,
    lambda x, i: x[i + 1 : i + 3, i : i + 2].exp(),
    lambda x, i: (x[i, i] + x[i, 0], x[[1, 2]] * i),
    lambda x, i: x + torch.arange(i, i + 8),
    lambda x, i: x + torch.tensor([i, i + 1.5, 0, 0, 0, 0, 0, 0]) + torch.tensor([[i]]),
    lambda x, i: x[i].view(2, 4).t().contiguous() + x[i].reshape(4, 2),
    lambda x, i: x.abs() ** (i + 0.5) + torch.pow(x, i),
]


@pytest.mark.parametrize("f", READS)
@pytest.mark.parametrize("grad", [False, True])
def test_reads(f: Callable[..., Any], grad: bool) -> None:
    flashover.reset()
    fast = flashover.compile(f)
    before = frames()
    for i in INTEGERS:
        a, b = X.clone().requires_grad_(grad), X.clone().requires_grad_(grad)
        got, want = fast(a, i), f(b, i)
        same(got, want)
        if grad:
            for r in (got, want):
                sum(t.sum() for t in (r if isinstance(r, tuple) else (r,))).backward()
            torch.testing.assert_close(a.grad, b.grad)
    assert frames() - before <= 4


def row(x: torch.Tensor, v: torch.Tensor, i: int) -> Any:
    x[i] = v[0]
    return x * 2


def column(x: torch.Tensor, v: torch.Tensor, i: int) -> Any:
    x[:, i] = v[:, 0] * 2
    return x.sum(0)


def cache(x: torch.Tensor, v: torch.Tensor, i: int) -> Any:
    x[2:5, i : i + 1] = v[:3, :1].double()
    return x @ v.t()


def numbers(x: torch.Tensor, v: torch.Tensor, i: int) -> Any:
    x[i] = i
    x[..., i + 1] = 0.5
    x[i : i + 2, None] = v[:2, None]
    return x + 1


def from_behind(x: torch.Tensor, v: torch.Tensor, i: int) -> Any:
    y = x * 2
    y[-i - 1] = v[0]
    return y


def scattered(x: torch.Tensor, v: torch.Tensor, i: int) -> Any:
    y = torch.zeros_like(x)
    y[:, i : i + 3] = v[:, :3]
    return y + x


@pytest.mark.parametrize("f", [row, column, cache, numbers, from_behind, scattered])
def test_writes(f: Callable[..., Any]) -> None:
    flashover.reset()
    fast = flashover.compile(f)
    before = frames()
    v = torch.randn(12, 8)
    for i in (3, 1, 4, 2, 5, 0):
        a, b = X.clone(), X.clone()
        same(fast(a, v, i), f(b, v, i))
        torch.testing.assert_close(a, b)
    assert frames() - before <= 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_numbers_that_are_stored(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, number: float) -> torch.Tensor:
        y = x.clone()
        y[0] = number
        y[1:, 2] = number * 2
        y[y > 1] = number
        y[torch.tensor([2, 4])] = number + 1
        return y

    fast = flashover.compile(f, fullgraph=True)
    x = X.to(dtype)
    for number in (0.5, 1.25, -3.0, 0.0, 2.75, 1e9):
        same(fast(x, number), f(x, number))
    assert dtype == torch.int64 or fast.stats().versions <= 2


def test_a_number_that_the_tensor_cannot_hold() -> None:
    def f(x: torch.Tensor, number: float) -> torch.Tensor:
        x[0] = number
        return x * 2

    fast = flashover.compile(f, options={"eager_warning": False})
    for number in (0.5, 1.5, 2.5):
        same(fast(X.clone(), number), f(X.clone(), number))
    for g in (f, fast):
        with pytest.raises(RuntimeError, match="without overflow"):
            g(X.clone(), 1e300)


def test_writes_with_gradients() -> None:
    fast = flashover.compile(scattered)
    for i in (3, 1, 4, 2):
        pairs = []
        for f in (fast, scattered):
            x, v = X.clone().requires_grad_(), (X / 3).requires_grad_(True).detach().requires_grad_()
            (f(x, v, i) ** 2).sum().backward()
            pairs.append((x.grad, v.grad))
        torch.testing.assert_close(*pairs)


def test_parts_that_leave_or_are_written() -> None:
    def leaves(x: torch.Tensor, i: int) -> Any:
        return x[i], x[i] * 2

    def writes_the_part(x: torch.Tensor, i: int) -> Any:
        y = x[i]
        y += 1
        return x.sum(1)

    def writes_the_whole(x: torch.Tensor, i: int) -> Any:
        y = x[i]
        x[2] = 7.0
        return y * 2

    def in_a_list(x: torch.Tensor, i: int) -> Any:
        log.append(x[i])
        return x[i] + 1

    log: list[torch.Tensor] = []
    for f in (leaves, writes_the_part, writes_the_whole, in_a_list):
        flashover.reset()
        fast = flashover.compile(f)
        for i in (3, 1, 2, 0):
            a, b = X.clone(), X.clone()
            log.clear()
            got, seen = fast(a, i), list(log)
            log.clear()
            same(got, f(b, i))
            torch.testing.assert_close(a, b)
            same(tuple(seen), tuple(log))
            if f is leaves:
                got[0].zero_()
                assert a[i].abs().sum() == 0
            for t in seen:
                assert t._base is a


def test_out_of_range_is_raised() -> None:
    def f(x: torch.Tensor, i: int) -> torch.Tensor:
        return x[i] * 2

    fast = flashover.compile(f)
    for i in (3, 1, 2):
        fast(X, i)
    with pytest.raises(IndexError, match="index 12 is out of bounds"):
        fast(X, 12)
    with pytest.raises(IndexError):
        fast(X, -13)
    same(fast(X, -12), f(X, -12))
    same(fast(X[:5], 4), f(X[:5], 4))


def test_grad_mode_of_a_part() -> None:
    def f(x: torch.Tensor, i: int) -> Any:
        with torch.no_grad():
            y = x[i] * 2
        return y, x[i] * 3

    fast = flashover.compile(f)
    for i in (3, 1, 2):
        x = X.clone().requires_grad_()
        got, want = fast(x, i), f(x, i)
        assert [t.requires_grad for t in got] == [t.requires_grad for t in want] == [False, True]
        got[1].sum().backward()
        assert x.grad is not None and x.grad[i].sum() == 24 and x.grad.sum() == 24
