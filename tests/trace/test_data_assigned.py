"""`tensor.data = other`: the tensor is in other memory from then on, inside of the graph and behind the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import flashover

pytestmark = pytest.mark.timeout(120)

Tensor = torch.Tensor


def of_an_expression(x: Tensor, y: Tensor) -> Tensor:
    x.data = y * 2
    return x + 1


def exchanged(x: Tensor, y: Tensor) -> Tensor:
    x.data, y.data = y.data, x.data
    return x - y


def then_written(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    view = x[1:]
    x.data = y
    x.add_(1)
    return view + 1, x


def twice(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.data = y * 3
    kept = x.data
    x.data = x * 2
    return kept, x.data


def augmented(x: Tensor, y: Tensor) -> Tensor:
    x.data -= 0.1 * y
    return x.sum()


def of_another_shape(x: Tensor, y: Tensor) -> Tensor:
    x.data = y[1:] * 2
    return x + 1


def shared(tensors: list[Tensor]) -> list[list[bool]]:
    memory = [t.untyped_storage().data_ptr() for t in tensors]
    return [[a == b for a in memory] for b in memory]


@pytest.mark.parametrize("f", [of_an_expression, exchanged, then_written, twice, augmented, of_another_shape])
def test_as_eager(f: Callable[..., Any]) -> None:
    theirs = [torch.arange(3.0), torch.arange(3.0) + 5]
    ours = [t.clone() for t in theirs]
    fast = flashover.compile(f, fullgraph=f is not of_another_shape)
    for _ in range(3):
        if f is of_another_shape:
            theirs[0], ours[0] = torch.arange(3.0), torch.arange(3.0)
        want, got = f(*theirs), fast(*ours)
        want, got = ([*r] if isinstance(r, tuple) else [r] for r in (want, got))
        for a, b in zip([*want, *theirs], [*got, *ours], strict=True):
            torch.testing.assert_close(a, b)
            assert a._version == b._version
        assert shared([*want, *theirs]) == shared([*got, *ours])


def test_a_step_of_training_by_hand() -> None:
    def step(m: torch.nn.Module, x: Tensor) -> Tensor:
        loss = m(x).square().mean()
        for p, g in zip(m.parameters(), torch.autograd.grad(loss, [*m.parameters()]), strict=True):
            p.data = p.data - 0.1 * g
        return loss.detach()

    torch.manual_seed(0)
    theirs, ours = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    ours.load_state_dict(theirs.state_dict())
    fast = flashover.compile(step, fullgraph=True)
    for _ in range(4):
        x = torch.randn(5, 3)
        torch.testing.assert_close(fast(ours, x), step(theirs, x))
    torch.testing.assert_close(ours.weight, theirs.weight)
    assert isinstance(ours.weight, torch.nn.Parameter) and ours.weight.requires_grad


def test_a_result_that_is_differentiated() -> None:
    """Autograd's saved tensors are in the new memory then: not in one graph, and as eager's."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        z = (x * x * y).sum()
        x.data = y * 2
        return z + x.sum()

    gradients = []
    for g in (f, flashover.compile(f)):
        x, y = torch.ones(3, requires_grad=True), torch.arange(3.0)
        g(x, y).backward()
        gradients += [x.grad, x.detach()]
    torch.testing.assert_close(gradients[:2], gradients[2:])
