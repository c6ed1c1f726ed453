"""Jagged nested tensors: their parts are inputs, the lengths may change, and results are nested again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flashover

LENGTHS = ([3, 5, 2], [4, 1, 6], [2, 2, 3])


def jagged(lengths: list[int], width: int = 4, grad: bool = False) -> Tensor:
    parts = [torch.randn(n, width, dtype=torch.float64) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=grad)


def copied(o: Any) -> Any:
    if isinstance(o, Tensor) and o.is_nested:
        made = torch.nested.nested_tensor_from_jagged(o.detach().values().clone(), o.offsets().clone())
        return made.requires_grad_(o.requires_grad)
    return o.detach().clone().requires_grad_(o.requires_grad) if isinstance(o, Tensor) else o


def tensors_of(o: Any) -> list[Tensor]:
    return [o] if isinstance(o, Tensor) else [t for item in o for t in tensors_of(item)]


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, (list, tuple)) and not isinstance(a, torch.Size):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, Tensor):
        assert (a.dtype, a.dim(), a.requires_grad, a.is_leaf) == (b.dtype, b.dim(), b.requires_grad, b.is_leaf)
        if a.is_nested:
            torch.testing.assert_close(a.offsets(), b.offsets())
            assert a._ragged_idx == b._ragged_idx
            same(a._values, b._values)
        else:
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b)


def sums(o: Any) -> Tensor:
    return sum((t.values() if t.is_nested else t).sin().sum() for t in tensors_of(o))


def step(function: Callable[..., Any], args: Any) -> list[Any]:
    made = function(*args)
    tensors = [t for t in tensors_of(made) if t.requires_grad]
    if tensors:
        sums(tensors).backward()
    return [made, [a.grad for a in args if isinstance(a, Tensor)]]


FUNCTIONS: list[Callable[..., Any]] = [
    lambda t: t * 2,
    lambda t: (t.sin() + t.cos(), t.relu()),
    lambda t: F.gelu(t) * t,
    lambda t: t.softmax(-1),
    lambda t: F.layer_norm(t, (4,)),
    lambda t: t.mean(-1, keepdim=True),
    lambda t: t.values() * 2,
    lambda t: (t * 2).values().sum(0),
    lambda t: (t.offsets(), t + 1),
    lambda t: t.transpose(1, 2) * 3,
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_is_one_graph_for_all_lengths(function: Callable[..., Any], grad: bool) -> None:
    fast = flashover.compile(function, fullgraph=True)
    for lengths in LENGTHS:
        t = jagged(lengths, grad=grad)
        same(step(fast, [copied(t)]), step(function, [copied(t)]))
    assert len(flashover.live(fast).versions) <= 2


@pytest.mark.parametrize("grad", [False, True])
def test_two_of_the_same_lengths(grad: bool) -> None:
    def function(t: Tensor) -> Tensor:
        u = t * 3
        return u * t + u

    fast = flashover.compile(lambda a, b: function(a) * b, fullgraph=True)
    for lengths in LENGTHS:
        t = jagged(lengths, grad=grad)
        u = torch.nested.nested_tensor_from_jagged(torch.randn_like(t.values()).detach(), t.offsets())
        same(fast(t, u), function(t) * u)
    assert len(flashover.live(fast).versions) <= 2


def test_other_lengths_do_not_fit() -> None:
    fast = flashover.compile(lambda a, b: a + b)
    t, u = jagged([3, 5, 2]), jagged([3, 5, 2])
    with pytest.raises(RuntimeError):
        t + u
    same(fast(t, t), t + t)
    with pytest.raises(RuntimeError):
        fast(t, u)
    same(fast(u, u), u + u)


def projections() -> nn.Module:
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(4, 8) for _ in range(3))
            self.norm = nn.LayerNorm(8)
            self.out = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(F.gelu(self.norm(self.q(x) * self.k(x) + self.v(x)))) + x

    return Block().double()


def test_projections_of_a_ragged_batch_train() -> None:
    mine, theirs = projections(), projections()
    fast = flashover.compile(mine, fullgraph=True)
    for lengths in LENGTHS:
        t = jagged(lengths)
        for m, module in ((fast, mine), (theirs, theirs)):
            module.zero_grad()
            m(copied(t)).values().square().mean().backward()
        same(fast(t), theirs(t))
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    assert len(flashover.live(fast).versions) <= 2


def test_made_inside() -> None:
    def function(values: Tensor, offsets: Tensor) -> Any:
        t = torch.nested.nested_tensor_from_jagged(values * 2, offsets)
        return t.sin(), t.values() + 1

    fast = flashover.compile(function, fullgraph=True)
    for lengths in LENGTHS:
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        values = torch.randn(sum(lengths), 4, dtype=torch.float64, requires_grad=True)
        mine, theirs = copied(values), copied(values)
        same(step(fast, [mine, offsets]), step(function, [theirs, offsets]))
        assert fast(mine, offsets)[0].offsets() is offsets
    assert len(flashover.live(fast).versions) <= 2


EAGER: list[Callable[..., Any]] = [
    lambda t: torch.nested.to_padded_tensor(t, 0.0),
    lambda t: t.unbind(),
    lambda t: t.detach().sum(1),
    lambda t: t.detach().mean(1),
    lambda t: t.detach().sum(-1),
    lambda t: (t.softmax(1), t * 2),
    lambda t: torch.nested.nested_tensor([t.values()[:2] * 2, t.values()[2:]], layout=torch.jagged),
    lambda t: F.scaled_dot_product_attention(
        *[t.reshape(t.shape[0], -1, 2, 2).transpose(1, 2) for _ in range(3)]
    ).transpose(1, 2),
    lambda t: t.shape[0] * t.size(2) * t,
    lambda t: t * 2 if t.dim() == 3 else t,
    lambda t: t.is_contiguous(),
    lambda t: (t.numel(), t.values().new_ones(t.numel())),
    lambda t: torch.nested.as_nested_tensor([t.values()[:2] * 2, t.values()[1:]], layout=torch.jagged),
]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", EAGER)
def test_gives_what_eager_gives(function: Callable[..., Any], grad: bool) -> None:
    """Compiled, in parts, or not."""
    fast = flashover.compile(function)
    for lengths in LENGTHS:
        t = jagged(lengths, grad=grad)
        mine, theirs = copied(t), copied(t)
        got, wanted = fast(mine), function(theirs)
        same(got, wanted)
        if isinstance(got, Tensor) and got.requires_grad:
            sums(got).backward()
            sums(wanted).backward()
            same(mine.grad, theirs.grad)
