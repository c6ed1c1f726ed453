"""Python ints that change and may be 0, 1 or negative: where they are places, offsets, shifts and bounds, a version for
each sign serves all of its values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import differ
from torch import Tensor, nn

import flashover


def written(x: Tensor, n: int) -> Tensor:
    y = x.clone()
    y[:, n:] = 0
    y[n] = 1.0
    return y


# For each sign a version, behind the static one of the first value.
BY_SIGN: dict[str, Callable[[Tensor, int], Any]] = {
    "from": lambda x, n: x[:, n:] * 2,
    "up to": lambda x, n: x[:, :n] * 2,
    "last": lambda x, n: x[-n:] * 2,
    "of a result": lambda x, n: x.sin()[:, n:],
    "select": lambda x, n: x.sin()[..., n] * 2,
    "select by method": lambda x, n: x.sin().select(1, n) * 2,
    "of an input": lambda x, n: x[n] * 2,
    "beside a tensor": lambda x, n: x[torch.tensor([0, 1]), n] * 2,
    "roll": lambda x, n: torch.roll(x, n) + 1,
    "roll a dim": lambda x, n: torch.roll(x, n, 1) + 1,
    "roll both": lambda x, n: torch.roll(x, (n, -n), (0, 1)) + 1,
    "diagonal": lambda x, n: x.sin().diagonal(offset=n) * 2,
    "diagonal of dims": lambda x, n: x.view(1, 12, 12).sin().diagonal(n, 2, -2).sum(-1),
    "torch.diagonal": lambda x, n: torch.diagonal(x, n, dim1=1, dim2=0) * 2,
    "diag": lambda x, n: torch.diag(x.sin(), n) * 2,
    "diag_embed": lambda x, n: torch.diag_embed(x[0], n) * 2,
    "tril": lambda x, n: torch.tril(x.sin(), n) * 2,
    "triu": lambda x, n: x.sin().triu(n) * 2,
    "causal": lambda x, n: x.masked_fill(torch.ones(12, 12, dtype=torch.bool).triu(n), -1e9).softmax(-1),
    "pad": lambda x, n: F.pad(x, (n, 0)) * 2,
    "arange": lambda x, n: torch.arange(n, 20) * 2,
    "written": written,
    "abs": lambda x, n: x[: abs(n)] * 2,
}
# What only computes with the number has one version for all.
AS_NUMBERS: dict[str, Callable[[Tensor, int], Any]] = {
    "mul": lambda x, n: x * n + n,
    "power": lambda x, n: x**n,
    "pow_": lambda x, n: x.clone().pow_(n),
    "base": lambda x, n: n**x,
    "full": lambda x, n: torch.full((2,), n) + x.sum(),
    "new_full": lambda x, n: x.new_full((2, 3), n),
    "tensor": lambda x, n: torch.tensor([n, 2 * n]) + x.sum(),
    "clamp": lambda x, n: x.clamp(min=n),
    "compared": lambda x, n: x * (torch.arange(12) >= n),
    "arange of a fixed length": lambda x, n: torch.arange(n, n + 5) * 2,
}
# Sizes and counts: they are not negative.
COUNTS: dict[str, Callable[[Tensor, int], Any]] = {
    "zeros": lambda x, n: torch.zeros(n, 2) + x.sum(),
    "expand": lambda x, n: x[None].expand(n, 12, 12) * 2,
    "repeat": lambda x, n: x.repeat(n, 1) + 1,
    "split": lambda x, n: x.split([n, 12 - n])[0] * 2,
    "narrow": lambda x, n: x.sin().narrow(1, 0, n) * 2,
    "topk": lambda x, n: x.flatten().topk(n)[0],
    "window": lambda x, n: x.sin()[:, n : n + 3] * 2,
    "one-hot": lambda x, n: F.one_hot(torch.tensor([1, 0]), n + 2).sum(0),
    "strided": lambda x, n: x.sin().as_strided((4, 2), (2, 1), n) * 2,
    "linspace": lambda x, n: torch.linspace(0, 1, n + 1) + x.sum(),
}
ORDERS = ((2, 3, 0, 1, -1, -2, 5, -5, 4), (0, 1, 2, 5, -1, -3), (-1, -2, -5, 0, 3, 1), (1, -1, 0, 7))


def graphs_of(f: Callable[[Tensor, int], Any], values: Sequence[int]) -> int:
    flashover.reset()
    compiled = flashover.compile(f, options={"recompile_limit": 32})
    before = flashover.compile_stats()["graphs"]
    x = torch.randn(12, 12)
    for n in values:
        got, want = compiled(x, n), f(x, n)
        assert (wrong := differ(got, want, rtol=1e-5, atol=1e-5)) == "", f"{n}: {wrong}"
    return flashover.compile_stats()["graphs"] - before


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", BY_SIGN)
def test_a_version_for_each_sign(name: str, order: Sequence[int]) -> None:
    assert graphs_of(BY_SIGN[name], order) <= (4 if name == "last" else 3)  # (-0 is the first place)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", AS_NUMBERS)
def test_numbers_to_compute_with(name: str, order: Sequence[int]) -> None:
    assert graphs_of(AS_NUMBERS[name], order) <= 2


@pytest.mark.parametrize("order", [(2, 3, 0, 1, 5, 4), (0, 1, 2, 4), (1, 0, 4, 3)], ids=str)
@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str, order: Sequence[int]) -> None:
    assert graphs_of(COUNTS[name], order) <= 2


@pytest.mark.parametrize("name", [*BY_SIGN, *AS_NUMBERS, *COUNTS])
def test_out_of_range_is_as_in_eager(name: str) -> None:
    f = {**BY_SIGN, **AS_NUMBERS, **COUNTS}[name]
    compiled = flashover.compile(f, options={"recompile_limit": 32})
    x = torch.rand(12, 12) + 0.5
    for n in (3, 4, 12, -12, 13, -13, 40, -40, 2**31, -(2**62), 2**70, True, 3):
        if abs(n) > 2**30 and name in ("zeros", "expand", "repeat", "pad", "diag_embed", "one-hot", "linspace"):
            continue  # (memory)
        wrong = None
        try:
            want = f(x, n)
        except Exception as e:
            wrong = type(e)
        if wrong is not None:
            with pytest.raises(wrong):
                compiled(x, n)
        else:
            assert (difference := differ(compiled(x, n), want, rtol=1e-5, atol=1e-5)) == "", f"{n}: {difference}"


def test_an_error_is_of_its_call_alone() -> None:
    compiled = flashover.compile(lambda x, n: x.sin()[n] * 2)
    x = torch.randn(12, 12)
    before = flashover.compile_stats()
    for n in (2, 3, 20, 4, -1, -3, -20, 5, -4, 12, 13, 6):
        if -12 <= n < 12:
            torch.testing.assert_close(compiled(x, n), x.sin()[n] * 2)
        else:
            with pytest.raises(IndexError):
                compiled(x, n)
    after = flashover.compile_stats()
    assert after["graphs"] - before["graphs"] == 3
    assert after["eager_calls"] - before["eager_calls"] == 4


class Counting(nn.Module):
    """An attribute that counts from 0 on, and a global's kin."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0
        self.weight = nn.Parameter(torch.randn(12, 4))

    def forward(self, x: Tensor) -> Tensor:
        row = x[self.at] @ self.weight
        self.at += 1
        return row.softmax(-1) * self.at


def test_a_counter_from_zero() -> None:
    torch.manual_seed(0)
    eager = Counting()
    module = copy.deepcopy(eager)
    compiled = flashover.compile(module)
    flashover.reset()
    before = flashover.compile_stats()["graphs"]
    x = torch.randn(12, 12)
    for _ in range(10):
        got, want = compiled(x), eager(x)
        torch.testing.assert_close(got, want)
        got.sum().backward()
        want.sum().backward()
        torch.testing.assert_close(module.weight.grad, eager.weight.grad)
    assert module.at == eager.at == 10
    assert flashover.compile_stats()["graphs"] - before == 2


def test_a_closure_that_shifts() -> None:
    shift = -2

    def f(x: Tensor) -> Tensor:
        return torch.roll(x, shift, 0) - x[:, shift:].sum()

    compiled = flashover.compile(f)
    before = flashover.compile_stats()["graphs"]
    x = torch.randn(12, 12)
    for shift in (-2, -1, -5, -3, 1, 4, 2):  # noqa: B007
        torch.testing.assert_close(compiled(x), f(x))
    assert flashover.compile_stats()["graphs"] - before <= 3


@pytest.mark.parametrize("n", [-2, 0, 1, 3])
def test_gradients(n: int) -> None:
    def f(x: Tensor, n: int) -> Tensor:
        return (x[:, n:].sum() * n + x.diagonal(n).square().sum() + (x.roll(n, 0) * x.tril(n)).sum()) + x[n].prod()

    compiled = flashover.compile(f, fullgraph=True)
    for k in (2, 5, -1, -3, n):
        a = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
        b = a.detach().clone().requires_grad_()
        got, want = compiled(a, k), f(b, k)
        torch.testing.assert_close(got, want)
        got.backward()
        want.backward()
        torch.testing.assert_close(a.grad, b.grad)


POWERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "in place": lambda x, n: (x * 1).pow_(n),
    "by a statement": lambda x, n: power_of(x * 1, n),
    "by a float": lambda x, n: (x * 1).pow_(n / 2) + x ** (n * 0.5),
    "as a base": lambda x, n: (n + 4) ** x,
}


def power_of(x: Tensor, n: int) -> Tensor:
    x **= n
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (4,)])
@pytest.mark.parametrize("name", POWERS)
def test_powers_in_training(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    f = POWERS[name]
    compiled = flashover.compile(f, fullgraph=True)
    flashover.reset()
    before = flashover.compile_stats()["graphs"]
    for n in (2, 3, 0, 1, -1, 5):
        a = (torch.rand(shape, dtype=dtype) + 0.5).requires_grad_()
        b = a.detach().clone().requires_grad_()
        got, want = compiled(a, n), f(b, n)
        torch.testing.assert_close(got, want)
        got.sum().backward()
        want.sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
    assert flashover.compile_stats()["graphs"] - before <= 2
