"""Python ints that change and are sizes, bounds or places: one compile for the first value, one for all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from comparing import differ
from torch import Tensor, nn

import flashover

# name -> (program, what it is called with for n)
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "zeros": (lambda x, n: x + torch.zeros(n), lambda n: (torch.randn(n), n)),
    "zeros of a fixed input": (lambda x, n: torch.zeros(n, 2) + x, lambda n: (torch.randn(2), n)),
    "arange": (lambda x, n: torch.arange(n) * 2 + x, lambda n: (torch.randn(n), n)),
    "arange from": (lambda x, n: torch.arange(2, n + 2) * x.sum(), lambda n: (torch.randn(3), n)),
    "full": (lambda x, n: torch.full((n, 2), 3.0) * x.sum(), lambda n: (torch.randn(2), n)),
    "ones and more": (lambda x, n: torch.ones(2 * n + 1) * x[0], lambda n: (torch.randn(2), n)),
    "view": (lambda x, n: x.view(n, -1).sum(1), lambda n: (torch.randn(6 * n), n)),
    "reshape": (lambda x, n: x.reshape(-1, n, 2).softmax(1), lambda n: (torch.randn(3, 2 * n), n)),
    "expand": (lambda x, n: x.expand(n, 3) * 2, lambda n: (torch.randn(3), n)),
    "repeat": (lambda x, n: x.repeat(n) + 1, lambda n: (torch.randn(3), n)),
    "narrow": (lambda x, n: x.narrow(0, 1, n).cos(), lambda n: (torch.randn(80), n)),
    "first": (lambda x, n: x[:n].exp(), lambda n: (torch.randn(80), n)),
    "rest": (lambda x, n: x.sin()[n:].sum(), lambda n: (torch.randn(80), n)),
    "part": (lambda x, n: x.sin()[:, n : 2 * n, None], lambda n: (torch.randn(2, 160), n)),
    "element": (lambda x, n: x.sin()[n] * 2, lambda n: (torch.randn(80, 3), n)),
    "element of an input of any size": (lambda x, n: x[n - 1] * 2, lambda n: (torch.randn(80 + n, 3), n)),
    "part of an input of any size": (lambda x, n: x[n : n + 2] * 2, lambda n: (torch.randn(80 + n, 3), n)),
    "narrow of an input of any size": (lambda x, n: x.narrow(0, n, 2) * 2, lambda n: (torch.randn(80 + n, 3), n)),
    "end of an input of any size": (lambda x, n: x[-n:].cos(), lambda n: (torch.randn(80 + n, 3), n)),
    "written part of any size": (
        lambda x, n: x.sin().index_fill_(0, torch.arange(2), 2.0)[n - 1 : n + 1],
        lambda n: (torch.randn(80 + n, 3), n),
    ),
    "written part": (
        lambda x, n: torch.zeros(80).index_fill_(0, torch.arange(n), 2.0) + x,
        lambda n: (torch.ones(1), n),
    ),
    "pad": (lambda x, n: F.pad(x, (0, n)) * 2, lambda n: (torch.randn(2, 3), n)),
    "pad to": (lambda x, n: F.pad(x, (0, n - x.shape[0])), lambda n: (torch.randn(n - 2), n)),
    "split": (lambda x, n: [p * 2 for p in x.split([n, 5])], lambda n: (torch.randn(n + 5, 2), n)),
    "causal": (
        lambda x, n: x.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -1e9).softmax(-1),
        lambda n: (torch.randn(n, n), n),
    ),
    "compared": (lambda x, n: x * 2 if x.shape[0] == n else x * 3, lambda n: (torch.randn(n), n)),
    "interpolate": (lambda x, n: F.interpolate(x, size=(n, n + 1)), lambda n: (torch.randn(1, 2, 4, 4), n)),
    "handed on by typing": (lambda x, n: x[: cast("int", n)].exp(), lambda n: (torch.randn(80), n)),
    "computed": (lambda x, n: torch.zeros((n + 3) // 2 * 2).sum() + x, lambda n: (torch.randn(2), n)),
    "both a size and a factor": (lambda x, n: torch.ones(n) * n + x / n, lambda n: (torch.randn(n), n)),
    "handed out": (lambda x, n: (torch.ones(n) + x, n + 1, f"{n} rows"), lambda n: (torch.randn(n), n)),
    "two": (lambda x, n, m: x.view(n, m) + torch.zeros(m), lambda n: (torch.randn(n * (n + 1)), n, n + 1)),
}
VALUES = (5, 6, 9, 12, 7, 30, 64, 2, 5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_compiles_serve_all_values(name: str) -> None:
    f, args = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f)
    before = flashover.compile_stats()["graphs"]
    for n in VALUES:
        given = args(n)
        got, want = compiled(*given), f(*given)
        assert (wrong := differ(got, want, rtol=1e-5, atol=1e-5)) == "", f"{n}: {wrong}"
    assert flashover.compile_stats()["graphs"] - before == 2


# Some of these need the number itself. (as_strided: no stage does with a symbol what the trace does.)
ANY_WAY: dict[str, Callable[[Tensor, int], Any]] = {
    "as_strided": lambda x, n: x.as_strided((n, 2), (2, 1)),
    "unfold": lambda x, n: x.unfold(0, n + 1, 1).sum(-1),
    "pool": lambda x, n: F.avg_pool1d(x.t(), n + 1),
    "roll": lambda x, n: x.roll(n, 0),
    "topk": lambda x, n: x.flatten().topk(n)[0],
    "a dim": lambda x, n: torch.cat([x, x], n % 2).sum(n % 2),
    "chunk": lambda x, n: x.chunk(n + 1, 0)[0],
    "diagonal": lambda x, n: (x.diagonal(n - 6), x.tril(n - 5)),
    "from behind": lambda x, n: x[: -n - 1].sum(0) + x[-n - 1],
    "steps": lambda x, n: x[:: n + 1].sum(0),
    "rounds": lambda x, n: [x * i for i in range(n + 1)][-1],
    "the larger": lambda x, n: x[: max(n, 10)].sum(0) + min(n, 7),
    "window": lambda x, n: x[max(n - 2, 0) : n + 2].sum(0),
    "of a tensor": lambda x, n: x[: int(torch.tensor(n))].sum(0),
    "beside a tensor": lambda x, n: x[torch.tensor([0, 1]), n % 8],
    "a key": lambda x, n: x * {5: 1.0}.get(n, 2.0) * len(str(n)),
    "one-hot": lambda x, n: F.one_hot(torch.tensor([1, 0]), n + 2).sum(0),
    "random": lambda x, n: torch.randint(0, n + 1, (4,)) + torch.rand(n).sum() + torch.randperm(n).sum(),
}


@pytest.mark.parametrize("name", ANY_WAY)
def test_right_for_every_value(name: str) -> None:
    f = ANY_WAY[name]
    compiled = flashover.compile(f, options={"recompile_limit": 32})
    for n in (5, 6, 9, 12, 7, 3, 2, 1, 0, 20):
        x = torch.randn(33, 8)
        torch.manual_seed(n)
        got = compiled(x, n)
        torch.manual_seed(n)
        want = f(x, n)
        assert (wrong := differ(got, want, rtol=1e-5, atol=1e-5)) == "", f"{n}: {wrong}"


@pytest.mark.parametrize("n", [0, 1, -1, -3, 2**33, True])
def test_other_values_are_right_too(n: int) -> None:
    def f(x: Tensor, n: int) -> Tensor:
        return x.sin()[:n].sum() + torch.zeros(abs(n) % 7).sum()

    compiled = flashover.compile(f)
    for k in (5, 6, 7, n, 8):
        x = torch.randn(40)
        torch.testing.assert_close(compiled(x, k), f(x, k))


def test_what_a_size_cannot_be_is_an_error() -> None:
    compiled = flashover.compile(lambda x, n: x + torch.zeros(n))
    for n in (5, 6, 7):
        compiled(torch.randn(n), n)
    with pytest.raises(RuntimeError, match="negative"):
        compiled(torch.randn(5), -5)
    with pytest.raises(RuntimeError, match="size of tensor"):
        compiled(torch.randn(5), 6)
    with pytest.raises(TypeError):
        compiled(torch.randn(5), 5.0)


class Cached(nn.Module):
    """A counter of its own says how much of a buffer is filled."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(100, 4))
        self.filled = 2
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.rows[self.filled : self.filled + x.shape[0]] = x.detach()
        self.filled += x.shape[0]
        return (self.rows[: self.filled] @ self.weight).softmax(0)


def test_a_counter_that_says_how_much_is_filled() -> None:
    torch.manual_seed(0)
    eager = Cached()
    module = copy.deepcopy(eager)
    compiled = flashover.compile(module)
    before = flashover.compile_stats()["graphs"]
    for rows in (3, 3, 2, 5, 4, 3, 8, 3):
        x = torch.randn(rows, 4)
        got, want = compiled(x), eager(x)
        assert (wrong := differ(got, want, rtol=1e-5, atol=1e-5)) == "", wrong
        got.square().sum().backward()
        want.square().sum().backward()
        torch.testing.assert_close(module.weight.grad, eager.weight.grad, rtol=1e-4, atol=1e-5)
        assert module.filled == eager.filled
    assert flashover.compile_stats()["graphs"] - before <= 4


def test_powers_in_training() -> None:
    """The backward of a number's power compares the number."""

    def f(x: Tensor, n: int) -> Tensor:
        return x.abs() ** (n + 0.5) + torch.pow(x, n) * len(x) + x.pow(len(x))

    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for rows in (2, 3, 5):
        for n in (2, 3, 0, 1, 7, -2):
            a = (torch.randn(rows, 4, dtype=torch.float64) + 3).requires_grad_()
            b = a.detach().clone().requires_grad_()
            got, want = compiled(a, n), f(b, n)
            torch.testing.assert_close(got, want)
            got.sum().backward()
            want.sum().backward()
            torch.testing.assert_close(a.grad, b.grad)
    assert flashover.compile_stats()["graphs"] - before <= 3


def test_numbers_to_compute_with_are_no_sizes() -> None:
    """A factor may be what no size is."""
    flashover.reset()
    compiled = flashover.compile(lambda x, n: x * n + n)
    before = flashover.compile_stats()["graphs"]
    for n in (5, 6, 7, -2, 10**6, 0):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, n), x * n + n)
    assert flashover.compile_stats()["graphs"] - before == 2
