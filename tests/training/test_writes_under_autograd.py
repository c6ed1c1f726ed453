"""Inputs, buffers and saved tensors that are written in place where autograd records."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import loss_of
from differentiating import compiled, leaf
from trace_tools import tensors_of

import flashover

pytestmark = pytest.mark.timeout(300)


WRITERS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "whole": lambda x, w: x.mul_(w).sin(),
    "nothing_returned": lambda x, w: x.mul_(w).sin_() is None,
    "row": lambda x, w: x[0].mul_(w[0]).sum().detach(),
    "filled": lambda x, w: x.zero_().add(w),
    "returned_itself": lambda x, w: x.mul_(w[0]),
    "view_from_before": lambda x, w: (lambda v: (x.mul_(w), v * 2, v)[1:])(x[0]),
    "view_from_after": lambda x, w: x.mul_(w).view(-1),
    "read_before": lambda x, w: (lambda y: (x.add_(w), y))(x * 2),
    "twice": lambda x, w: (x.add_(w), x.mul_(2))[1].exp(),
    "without_grad_too": lambda x, w: (x.detach().add_(1), x.mul_(w))[1].sum(),
}


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("name", WRITERS)
def test_input_written_under_autograd(name: str, history: bool) -> None:
    """The caller's tensor gets a history, as in eager; one that had none requires grad afterwards."""
    f = WRITERS[name]
    fast = compiled(f)
    base, w = torch.rand(3, 4) + 0.5, torch.rand(3, 4)
    results = []
    for call in (fast, fast, f):
        torch.manual_seed(0)
        x, v = base.clone().requires_grad_(history), w.clone().requires_grad_()
        y = x * 2
        view, version = y[1:], y._version
        out = call(y, v)
        assert y._version > version
        total = loss_of([y.exp(), view.sin(), *tensors_of(out)])
        grads = torch.autograd.grad(total, [t for t in (x, v) if t.requires_grad], allow_unused=True)
        results.append([y, *tensors_of(out), total, *[torch.zeros(()) if g is None else g for g in grads]])
    for got in results[:2]:
        for g, e in zip(got, results[2], strict=True):
            assert g.requires_grad == e.requires_grad and g.stride() == e.stride()
            torch.testing.assert_close(g, e)


def test_buffer_that_comes_to_require_grad() -> None:
    def f(b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        b.add_(w * 2)
        return w.sin()

    for call in (compiled(f), f):
        b, w = torch.zeros(4), leaf(4)
        call(b, w)
        assert b.requires_grad and not b.is_leaf
        b.sum().backward()
        assert torch.equal(w.grad, torch.full((4,), 2.0))


def test_saved_result_written_in_place() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    x = leaf(3)
    y = compiled(f)(x)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    # Eager does not save the result of a sum of inputs: writing it is allowed.
    x = leaf(3)
    y = compiled(lambda x: (x.sin() + x.cos()) * 2)(x)
    y.add_(1)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * (x.cos() - x.sin()).detach())


def test_saved_input_written_in_place() -> None:
    x, y = leaf(3), torch.randn(3)
    z = compiled(lambda x, y: x * y)(x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@pytest.mark.parametrize("backend", ["flashover", "eager"])
@pytest.mark.parametrize(
    "new", [torch.zeros_like, torch.t, torch.Tensor.half, lambda t: t.new_empty(0), lambda t: t.view(-1)[:4]]
)
def test_saved_parameter_that_gets_other_memory(backend: str, new: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """`p.data = t` moves no version: the backward goes on with what the forward saw, as eager's linear does."""
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.nn.Parameter(torch.randn(4, 4))
    y = flashover.compile(lambda x, w: F.linear(x, w).sin() * w.sum(), backend=backend)(x, w)
    exact = torch.autograd.grad((F.linear(x, w).sin() * w.sum()).sum(), [x, w])
    w.data = new(w.data)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x, retain_graph=True)[0], exact[0])
    if new is torch.zeros_like:  # the engine takes no gradient of another shape or type
        torch.testing.assert_close(torch.autograd.grad(y.sum(), w)[0], exact[1])


def test_input_that_eager_does_not_save_may_be_written() -> None:
    x, y = leaf(3), torch.randn(3)
    f = lambda x, y: (x + y).sin()  # noqa: E731
    z = compiled(f)(x, y)
    expected = (x + y).cos().detach()
    y.zero_()
    z.sum().backward()
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("backend", ["flashover", "eager"])
@pytest.mark.parametrize("last", [torch.nn.Tanh(), torch.nn.Identity()])
def test_statistics_between_a_forward_and_its_backward(backend: str, last: torch.nn.Module) -> None:
    """A norm's formula reads the statistics as they are then, as eager's; what follows from the old ones was kept."""
    torch.manual_seed(0)
    norms = [torch.nn.BatchNorm1d(4, momentum=0.9) for _ in range(2)]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), norms[0], last, norms[1], torch.nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    fast = flashover.compile(model, backend=backend, fullgraph=True)
    x, other = torch.randn(8, 4), torch.randn(8, 4) * 3 + 2
    for m, call in ((twin, twin), (model, fast)):
        m.eval()
        first = call(x).square().sum()
        m.train()
        call(other)
        first.backward()
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=lambda m, name=name: f"{name}: {m}")


def test_mutated_buffers() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("seen", torch.zeros(3))
            self.register_buffer("count", torch.zeros((), dtype=torch.long))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.w * (1 + self.seen)
            self.seen.add_(x.detach().sum(0))
            self.count += 1
            return y

    m = Counter()
    e = copy.deepcopy(m)
    fast = compiled(m)
    for _ in range(3):
        x = torch.randn(2, 3)
        loss_of(fast(x)).backward()
        loss_of(e(x)).backward()
    torch.testing.assert_close(m.seen, e.seen)
    assert m.count.item() == e.count.item() == 3
    torch.testing.assert_close(m.w.grad, e.w.grad)


def test_batch_norm_with_update_in_bf16() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> list[torch.Tensor]:
        return torch.ops.aten._batch_norm_with_update(x, w, None, mean, var, 0.1, 1e-5)

    def run(call: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x, w = torch.randn(4, 3, 5).bfloat16().requires_grad_(), torch.rand(3).bfloat16().requires_grad_()
        mean, var = torch.zeros(3).bfloat16(), torch.ones(3).bfloat16()
        out = call(x, w, mean, var)
        out[0].float().square().sum().backward()
        return [*out, x.grad, w.grad, mean, var]

    for got, want in zip(run(compiled(f)), run(f), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("write", [lambda y: F.elu_(y, -2.0), lambda y: F.leaky_relu_(y, -2.0)])
def test_the_slope_of_a_result_does_not_fall(write):
    """Eager's backward refuses."""

    def f(x, a):
        return torch.autograd.grad(write(a * x).sum(), a)[0]

    with pytest.raises(RuntimeError, match="call out-of-place version"):
        flashover.compile(f)(torch.tensor([-1.0, 1.0]), leaf(2))
