"""Checks of data that raise: part of the graph, and the program's own exception with its effects before it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from comparing import whole

import flashover


def number_is_checked(x, log):
    log.append("begins")
    limit = 50
    if not x.max().item() <= limit:
        raise AssertionError("too large")
    if float(x.min()) < -7.25:
        raise ValueError("too small")
    if not x.isfinite().all().item():
        raise AssertionError
    torch._check_tensor_all(x != 3, lambda: "three")
    log.append("ends")
    return x + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8])
def test_checks_of_numbers_are_part_of_the_graph(dtype):
    compiled = flashover.compile(number_is_checked, fullgraph=True)
    good = [[1, 2], [50, 4]]
    for values in (good, [[1, 51], [2, 4]], [[1, -8], [2, 2]], [[1, 3], [2, 4]], [[float("nan"), 1], [1, 1]], good):
        if min(v for row in values for v in row) < 0 and dtype == torch.uint8:
            continue
        if not dtype.is_floating_point and any(v != v for row in values for v in row):
            continue
        outcomes = []
        for f in (number_is_checked, compiled):
            log: list[str] = []
            try:
                outcomes.append((f(torch.tensor(values, dtype=dtype), log).tolist(), log))
            except Exception as e:
                outcomes.append((repr(e), log))
        assert outcomes[0] == outcomes[1]


Tensor = torch.Tensor


def x() -> Tensor:
    return torch.arange(12.0).reshape(3, 4) * 0.1


def check(a: Tensor, log: list[int]) -> Tensor:
    log.append(1)
    assert (a < 1).all(), "too big"
    if not torch.isfinite(a).all():
        raise ValueError(f"bad {a.shape}")
    log.append(2)
    return a + 1


def test_checks_that_raise() -> None:
    c = whole(check)
    for value, error in ((0.5, None), (2.0, AssertionError), (-torch.inf, ValueError), (0.25, None)):
        got: list[int] = []
        if error is None:
            assert torch.equal(c(torch.full((3,), value), got), torch.full((3,), value + 1)) and got == [1, 2]
        else:
            with pytest.raises(error, match="too big" if error is AssertionError else "bad"):
                c(torch.full((3,), value), got)
            assert got == [1]


def test_checks_after_a_write() -> None:
    def f(a: Tensor) -> Tensor:
        a.add_(1)
        if a.sum() > 100:
            raise ValueError("big")
        return a * 2

    c, a, b = flashover.compile(f), x(), x()
    for _ in range(12):
        results = []
        for g, v in ((c, a), (f, b)):
            try:
                results.append(g(v).tolist())
            except ValueError as e:
                results.append(str(e))
        assert results[0] == results[1] and torch.equal(a, b)


def test_a_check_that_is_caught() -> None:
    def inner(a: Tensor) -> Tensor:
        if a.sum() > 5:
            raise ValueError
        return a + 1

    def f(a: Tensor) -> Tensor:
        try:
            return inner(a)
        except ValueError:
            return a - 1

    c = flashover.compile(f)
    for k, raises in ((0.0, False), (1.0, True), (0.1, False)):
        caught = pytest.warns(flashover.exc.EagerWarning, match="the program itself did not")
        with caught if raises else contextlib.nullcontext():
            assert torch.equal(c(x() * k), f(x() * k))


def test_checks_beside_random_numbers() -> None:
    def f(x: torch.Tensor) -> Any:
        noise = torch.randn(3)
        if not (x > 0).all():
            raise ValueError("not positive")
        return x * noise + torch.randn(3), torch.distributions.Normal(x, x).rsample()

    fast = flashover.compile(f, fullgraph=True)
    for x in (torch.ones(3), torch.ones(3) * 2, -torch.ones(3), torch.ones(3)):
        results = []
        for g in (fast, f):
            torch.manual_seed(3)
            try:
                results.append(g(x))
            except ValueError as e:
                results.append(str(e))
            results.append(torch.rand(2))
        torch.testing.assert_close(results[1], results[3])
        assert isinstance(results[0], str) == isinstance(results[2], str) == bool(x[0] < 0)
        if not isinstance(results[0], str):
            torch.testing.assert_close(results[0], results[2])
