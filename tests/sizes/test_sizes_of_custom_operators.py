"""Operators of the program whose results' sizes follow from data: torch.library.get_ctx().new_dynamic_size()."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flashover

LIB = torch.library.Library("flashover_sized", "FRAGMENT")
LIB.define("positions(Tensor x) -> Tensor")
LIB.define("halves(Tensor[] xs, Tensor?[] others) -> Tensor[]")
LIB.define("twice_as_many(Tensor x) -> Tensor")


@torch.library.register_fake("flashover_sized::positions")
def _(x):
    return x.new_empty((torch.library.get_ctx().new_dynamic_size(), x.dim()), dtype=torch.int64)


@torch.library.impl(LIB, "positions", "CPU")
def _(x):
    return torch.from_numpy(np.array(np.nonzero(x.numpy())).T)  # by columns, other than the function says


@torch.library.register_fake("flashover_sized::halves")
def _(xs, others):
    x = xs[0]
    n = torch.library.get_ctx().new_dynamic_size()
    return [x.new_empty(n), x.new_empty((n, 2), dtype=torch.bool)]


@torch.library.impl(LIB, "halves", "CPU")
def _(xs, others):
    assert others[0] is None
    x = xs[0] + xs[1] + others[1]
    found = x[x > 0].clone()
    return [found, torch.stack([found > 1, found < 1], 1)]


@torch.library.register_fake("flashover_sized::twice_as_many")
def _(x):
    return x.new_empty(2 * torch.library.get_ctx().new_dynamic_size())


@torch.library.impl(LIB, "twice_as_many", "CPU")
def _(x):
    return x[x > 0].repeat(2)


@torch.library.custom_op("flashover_sized::bounded", mutates_args=())
def bounded(x: Tensor, least: float) -> tuple[Tensor, Tensor]:
    kept = x > least
    return x[kept].clone(), kept.nonzero().flatten()


@bounded.register_fake
def _(x, least):
    n = torch.library.get_ctx().new_dynamic_size(min=2, max=20)
    return x.new_empty(n), x.new_empty(n, dtype=torch.int64)


def gradient(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:
    return torch.zeros(ctx.size).index_add(0, ctx.saved_tensors[0], g), None


def keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output[1])
    ctx.size = inputs[0].shape[0]


bounded.register_autograd(gradient, setup_context=keep)


def positions(x: Tensor) -> list[Tensor]:
    at = torch.ops.flashover_sized.positions(x)
    return [at * 2, torch.zeros(at.shape[0] + 1), x[at[:, 0], at[:, 1]] + 1]


def halves(x: Tensor) -> list[Tensor]:
    flat = x.flatten()
    found, sides = torch.ops.flashover_sized.halves([flat, flat * 2], [None, flat + 1])
    return [found * sides[:, 0], sides.sum(0)]


@pytest.mark.parametrize("program", [positions, halves])
def test_one_graph_serves_what_is_found(program: Any) -> None:
    before = flashover.compile_stats()["graphs"]
    fast = flashover.compile(program, fullgraph=True)
    for rows, share in ((4, 0.5), (4, 0.1), (5, 0.8), (6, 0.0), (7, 1.0)):
        x = torch.randn(rows, 3) * (torch.rand(rows, 3) < share)
        for got, want in zip(fast(x), program(x), strict=True):
            torch.testing.assert_close(got, want)  # (strides are the shape function's)
    assert flashover.compile_stats()["graphs"] - before <= 2


def trained(x: Tensor) -> Tensor:
    kept, at = bounded(x, 0.25)
    return (kept * 2).exp().sum() + at.sum()


def test_training() -> None:
    fast = flashover.compile(trained, fullgraph=True)
    for n in (8, 9, 12, 12):
        x = torch.rand(n) / 2 + 0.2
        x[:2] = 1
        grads = []
        for call in (fast, trained):
            leaf = x.clone().requires_grad_()
            y = call(leaf)
            y.backward()
            grads += [y.detach(), leaf.grad]
        torch.testing.assert_close(grads[:2], grads[2:])


@pytest.mark.parametrize("n", [1, 30])
def test_what_is_promised_of_a_size_is_checked(n: int) -> None:
    fast = flashover.compile(trained)
    torch.testing.assert_close(fast(torch.ones(8)), trained(torch.ones(8)))
    with pytest.warns(
        flashover.exc.EagerWarning, match=r"flashover_sized.bounded.default finds is at (least 2|most 20)"
    ):
        torch.testing.assert_close(fast(torch.ones(n)), trained(torch.ones(n)))


def test_a_size_that_no_result_has_breaks() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.ops.flashover_sized.twice_as_many(x) + 1

    x = torch.randn(10)
    with pytest.raises(flashover.exc.Unsupported, match="twice_as_many"):
        flashover.compile(program, fullgraph=True)(x)
    assert torch.equal(flashover.compile(program)(x), program(x))


def test_a_negative_bound_is_refused() -> None:
    from flashover import _fake_sizes

    for bound in (-1, -5):
        with pytest.raises(ValueError, match="not negative"):
            _fake_sizes.Context().new_dynamic_size(min=bound)
