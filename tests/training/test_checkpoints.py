"""Activation checkpoints: a part of the graph that is computed again in the backward."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import agree
from differentiating import compiled, leaf
from torch.utils.checkpoint import checkpoint

import flashover

pytestmark = pytest.mark.timeout(300)


class Block(torch.nn.Module):
    def __init__(self, norm: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.wide, self.narrow, self.norm = (
            torch.nn.Linear(16, 64),
            torch.nn.Linear(64, 16),
            norm or torch.nn.LayerNorm(16),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.norm(x)))), 0.2)


class Stack(torch.nn.Module):
    def __init__(self, blocks: list[torch.nn.Module], reentrant: bool | None) -> None:
        super().__init__()
        self.blocks, self.reentrant = torch.nn.ModuleList(blocks), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x.square().mean()


def step(call: Any, model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(4)
    model.zero_grad()
    x = x.detach().requires_grad_()
    loss = call(x)
    loss.backward()
    assert x.grad is not None
    return [loss.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None), torch.rand(2)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_is_part_of_the_graph(reentrant: bool) -> None:
    torch.manual_seed(0)
    model, x = Stack([Block() for _ in range(3)], reentrant), torch.randn(8, 16)
    expected = step(model, model, x)
    fast = compiled(model)
    for _ in range(2):
        torch.testing.assert_close(step(fast, model, x), expected)
    (graph,) = flashover.explain(model)(x.clone().requires_grad_()).graphs
    # Between the blocks one tensor each, and the masks of dropout; the wide ones are computed again.
    assert graph["saved_bytes"] <= 8 * 16 * 4 * 3 * 2
    model.reentrant = None
    (graph,) = flashover.explain(model)(x.clone().requires_grad_()).graphs
    assert graph["saved_bytes"] >= 8 * 64 * 4 * 3


def _scaled(x: torch.Tensor, w: torch.Tensor, *, by: float = 1.0) -> torch.Tensor:
    return (x @ w).tanh() * by


CHECKPOINTED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "spread": lambda x, w: checkpoint(*(_scaled, x, w), use_reentrant=False, by=2.0),
    "partial": lambda x, w: functools.partial(checkpoint, use_reentrant=False)(_scaled, x, w),
    "nested": lambda x, w: checkpoint(
        lambda a: checkpoint(_scaled, checkpoint(_scaled, a, w, use_reentrant=False), w, use_reentrant=False).exp(),
        x,
        use_reentrant=False,
    ),
    "gradient_inside": lambda x, w: torch.autograd.grad(
        checkpoint(_scaled, x, w, use_reentrant=False).sum(), x, create_graph=True
    )[0],
    "closure": lambda x, w: (lambda s: checkpoint(lambda a: (a @ w) * s, x, use_reentrant=False))(x.sigmoid()),
}


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpoint(name: str) -> None:
    agree(CHECKPOINTED[name], leaf(4, 4), leaf(4, 4))


def test_reentrant_checkpoint_with_integers() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return checkpoint(lambda a: ((a @ w).exp(), a.argmax(1)), x, use_reentrant=True)

    x, w = leaf(4, 4), leaf(4, 4)
    y, k = compiled(f)(x, w)
    y.sum().backward()
    got = [x.grad, w.grad]
    x.grad = w.grad = None
    y, expected = f(x, w)
    y.sum().backward()
    torch.testing.assert_close([*got, k], [x.grad, w.grad, expected])


def test_checkpointed_lstm() -> None:
    """The operator knows whether autograd records it: it is not run again."""
    torch.manual_seed(0)
    model, x = Stack([torch.nn.LSTM(4, 4)], False), torch.randn(3, 2, 4)
    model.blocks[0].register_forward_hook(lambda module, args, out: out[0])
    expected = step(model, model, x)
    torch.testing.assert_close(step(compiled(model), model, x), expected)


def test_checkpoint_that_does_things_twice_stays_so() -> None:
    """Statistics of batch norm are updated by the forward and by its second run."""

    class Counting(torch.nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x)

    for make in (lambda: Block(torch.nn.BatchNorm1d(16)), lambda: Counting(16, 16)):
        torch.manual_seed(0)
        model = Stack([make()], False)
        other, x = copy.deepcopy(model), torch.randn(8, 16)
        fast = compiled(model, fullgraph=False)
        for _ in range(3):
            torch.testing.assert_close(step(fast, model, x), step(other, other, x))
        torch.testing.assert_close(list(model.buffers()), list(other.buffers()))
        assert getattr(model.blocks[0], "calls", 0) == getattr(other.blocks[0], "calls", 0)


def test_graph_break_in_a_checkpoint() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).relu()
        if y.sum() > 1e9:
            return y
        return y.exp()

    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(f, x * 2, w, use_reentrant=False).sin()

    agree(call, leaf(3, 4), leaf(4, 4), fullgraph=False)
