"""Views that chunk, split and unbind give: autograd forbids to write them, and to use them once the base is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import flashover

MAKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "chunk": lambda t: t.chunk(2, 1)[-1],
    "split": lambda t: t.split(2, 1)[-1],
    "unbind": lambda t: t.unbind(1)[-1],
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_result(name: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, MAKERS[name](y)

    for call in f, flashover.compile(f):
        x = torch.randn(2, 3, requires_grad=True)
        whole, part = call(x)
        assert torch.equal(part, MAKERS[name](whole))
        part.sum().backward()
        whole, part = call(x)
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            part.add_(1)
        whole, part = call(x)
        whole.add_(1)
        with pytest.raises(RuntimeError, match="is a view and its base or another view of its base has been modified"):
            part.mul(2)


@pytest.mark.parametrize("name", MAKERS)
def test_across_a_graph_break(name: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        part = MAKERS[name](y)
        y.index_add_(1, torch.tensor([0]), y.narrow(1, 0, 1))  # a graph break: it reads what it writes
        part.narrow(0, 0, 1).add_(5)
        return y * 1.5

    for call in f, flashover.compile(f, options={"eager_warning": False}):
        with pytest.raises(RuntimeError, match="is a view and its base or another view of its base has been modified"):
            call(torch.randn(2, 3, requires_grad=True))


def test_one_view_alone_may_be_written() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y.narrow(1, 0, 1)

    for call in f, flashover.compile(f):
        x = torch.randn(2, 3, requires_grad=True)
        whole, part = call(x)
        part.mul_(3)
        whole.sum().backward()
        assert torch.equal(x.grad, torch.tensor([[6.0, 2, 2]]).expand(2, 3))
