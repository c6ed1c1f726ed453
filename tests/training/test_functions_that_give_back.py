"""Functions that return their input or a view of it: the result is the input's memory with the Function's gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import flashover

Tensor = torch.Tensor


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 0.5


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return -g.view(2, 3)


class WithProduct(torch.autograd.Function):
    """Of several results, which autograd calls views of another kind."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x, x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor, of_product: Tensor) -> tuple[Tensor, Tensor]:
        return g * 3 + of_product, of_product.sum()


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "input": lambda x, w: (Half.apply(x),),
    "view": lambda x, w: (Reversed.apply(x),),
    "two results": lambda x, w: WithProduct.apply(x, w),
    "row of it": lambda x, w: (Half.apply(x)[0], x * w),
    "row of two results": lambda x, w: (WithProduct.apply(x, w)[0][0],),
    "beside a view": lambda x, w: (Half.apply(x), x.view(-1), x * w),
    "twice": lambda x, w: (Half.apply(x), Reversed.apply(x)),
    "one behind the other": lambda x, w: (Reversed.apply(Half.apply(x)),),
    "input that is a view": lambda x, w: (Half.apply(x.t()),),
}


def facts(result: Tensor, x: Tensor) -> tuple[Any, ...]:
    return result._is_view(), result.is_leaf, result.data_ptr() - x.data_ptr(), result.stride()


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    f, seen = PROGRAMS[name], []
    torch.manual_seed(0)
    start, weight = torch.randn(2, 3), torch.randn(())
    for g in (flashover.compile(f, fullgraph=True), f):
        x, w = start.clone().requires_grad_(), weight.clone().requires_grad_()
        results = g(x, w)
        sum(r.sin().sum() for r in results).backward()
        seen.append(([r.detach() for r in results], [facts(r, x)[:2] for r in results], facts(results[0], x)))
        seen.append((x.grad, w.grad))
    torch.testing.assert_close(seen[0][0], seen[2][0])
    assert seen[0][1:] == seen[2][1:]
    torch.testing.assert_close(seen[1], seen[3])


@pytest.mark.parametrize("name", ["input", "two results"])
def test_no_write_into_it(name: str) -> None:
    x, w = torch.randn(2, 3, requires_grad=True), torch.randn(())
    result = flashover.compile(PROGRAMS[name], fullgraph=True)(x, w)[0]
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        result.mul_(2)


def test_of_what_the_call_makes() -> None:
    """A result and what a Function gave back of it have one memory and two gradients."""

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return y, *WithProduct.apply(y, w)

    grads = []
    start, weight = torch.randn(2, 3), torch.randn(())
    for g in (flashover.compile(f), f):
        x = start.clone().requires_grad_()
        w = weight.clone().requires_grad_()
        y, given, product = g(x, w)
        (y.sin() + given.cos() * 5 + product).sum().backward()
        grads.append((x.grad, w.grad))
    torch.testing.assert_close(*grads)
