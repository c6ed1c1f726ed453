"""Hooks on tensors, nodes and modules, and retained gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from comparing import agree
from differentiating import compiled, leaf
from torch.utils.hooks import RemovableHandle

import flashover

pytestmark = pytest.mark.timeout(300)


def test_hooks_outside() -> None:
    seen: list[torch.Tensor] = []
    m = torch.nn.Linear(3, 2)
    m.weight.register_hook(lambda g: g * 2)
    m.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    y = compiled(m)(torch.ones(1, 3))
    y.register_hook(lambda g: g * 5)
    y.sum().backward()
    assert torch.equal(m.weight.grad, torch.full((2, 3), 10.0)) and torch.equal(seen[0], torch.full((2,), 5.0))


def test_hooks_on_tensors() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * w
        y.register_hook(lambda g: g.clamp(-0.5, 0.5))
        z = y.exp()
        z.register_hook(lambda g: None)
        y.register_hook(lambda g: g + 1)
        return z.sin(), y

    agree(f, leaf(3, 4), leaf(3, 4))

    # A hook whose tensor gets no gradient is not called.
    def two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * w
        y.register_hook(lambda g: g + 1)
        return y.exp(), x.sin()

    x, w = leaf(3), leaf(3)
    compiled(two)(x, w)[1].sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert w.grad is None


def test_hooks_that_do_something() -> None:
    """They are called when the backward runs, each time."""
    seen: list[torch.Tensor] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).sin()
        y.register_hook(lambda g: seen.append(g.clone()))
        return (y * 3).exp()

    fast = compiled(f, fullgraph=False)
    for call in range(3):
        x = leaf(3)
        out = fast(x)
        assert len(seen) == call
        out.sum().backward()
        y = (x * 2).sin().detach()
        torch.testing.assert_close(seen[-1], 3 * (y * 3).exp())
        torch.testing.assert_close(x.grad, seen[-1] * 2 * (x * 2).cos().detach())


def _doubled(module: torch.nn.Module, grad_input: Any, grad_output: Any) -> Any:
    return tuple(g if g is None else g * 2 for g in grad_input)


def _shifted(module: torch.nn.Module, grad_output: Any) -> Any:
    return tuple(g + 1 for g in grad_output)


MODULE_HOOKS: dict[str, Callable[[torch.nn.Sequential], Any]] = {
    "full": lambda m: m[1].register_full_backward_hook(_doubled),
    "pre": lambda m: m[2].register_full_backward_pre_hook(_shifted),
    "both": lambda m: (m[0].register_full_backward_hook(_doubled), m[0].register_full_backward_pre_hook(_shifted)),
    "whole": lambda m: m.register_full_backward_hook(_doubled),
    "old": lambda m: m[1].register_backward_hook(_doubled),
}


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("name", MODULE_HOOKS)
def test_hooks_on_modules(name: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    MODULE_HOOKS[name](model)
    agree(model, leaf(2, 4), exact=False)


def test_module_hook_that_does_something() -> None:
    model, seen = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), []
    model[1].register_full_backward_hook(lambda m, grad_input, grad_output: seen.append(grad_output[0].sum().item()))
    fast = compiled(model, fullgraph=False)
    for call in range(3):
        (fast(leaf(2, 4)) * 2).sum().backward()
        assert seen == [16.0] * (call + 1)


def test_hooks_on_nodes_and_methods() -> None:
    class Scaled(torch.nn.Module):
        scale = 3.0

        def times(self, g: torch.Tensor) -> torch.Tensor:
            return g * self.scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.sin()
            y.register_hook(self.times)
            y.grad_fn.register_prehook(lambda grads: (grads[0] + 1,))
            y.grad_fn.register_hook(lambda to, of: (to[0] - of[0],))
            y.retain_grad()  # nobody can see it
            return y.exp()

    agree(Scaled(), leaf(3))


def test_retained_gradient_of_a_result() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.sin()
        y.retain_grad()
        return y.exp(), y

    fast = compiled(f, fullgraph=False)
    for g in (fast, f, fast):
        z, y = g(torch.zeros(3, requires_grad=True))
        (z * 2).sum().backward()
        assert torch.equal(y.grad, torch.full((3,), 2.0))


def test_hooks_write_what_the_call_made() -> None:
    """Such objects are made from a recipe: a write that only the trace saw would be lost."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        seen: list[torch.Tensor] = []
        y = x.sin()
        y.register_hook(lambda g: seen.append(g))
        return y.exp(), seen

    fast = compiled(f, fullgraph=False)
    for _ in range(2):
        y, seen = fast(torch.zeros(3, requires_grad=True))
        assert seen == []
        y.sum().backward()
        assert torch.equal(seen[0], torch.ones(3))


def tripled(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(3)


def registering(x: torch.Tensor, y: torch.Tensor, kept: list[Any]) -> tuple[Any, ...]:
    first = x.register_hook(lambda g: g * 2)
    z = y * y
    gone = x.register_hook(lambda g: g + 100)
    gone.remove()
    gone.remove()
    kept.append(x.register_hook(lambda g: g + z.sum()))
    x.register_post_accumulate_grad_hook(tripled)
    return (x * z).sum(), first, first, gone


@pytest.mark.parametrize("backend", ["flashover", "eager", "aot_eager"])
def test_hooks_on_what_is_handed_in(backend: str) -> None:
    """They are registered after the call, in order; their handles are the tensor's."""
    fast = flashover.compile(registering, backend=backend, fullgraph=True)
    runs = []
    for run in (registering, fast, fast):
        torch.manual_seed(0)
        x, y, kept = leaf(3), torch.randn(3), []
        total, first, same, gone = run(x, y, kept)
        assert first is same and isinstance(gone, RemovableHandle)
        total.backward(retain_graph=True)
        grads = [x.grad.clone()]
        first.remove()
        kept[0].remove()
        gone.remove()
        total.backward()
        runs.append([*grads, x.grad.clone()])
    torch.testing.assert_close(runs[1], runs[0])
    torch.testing.assert_close(runs[2], runs[0])


def test_hooks_on_results_of_operators_that_are_handed_in() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda g: g * 5)
        return x.sin()

    gradients = []
    for run in (f, compiled(f)):
        x = torch.ones(3, requires_grad=True)
        run(x * 2).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_hooks_on_inputs_that_are_not_served() -> None:
    """A write behind the hook, a gradient that it would change, its number: not captured whole."""

    def written(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        return inner(y)

    def inner(y: torch.Tensor) -> torch.Tensor:
        y.register_hook(lambda g: g * 2)
        y.mul_(3)
        return y

    def asked(x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda g: g * 2)
        return torch.autograd.grad((x * x).sum(), x)[0]

    def numbered(x: torch.Tensor) -> tuple[torch.Tensor, dict[Any, int]]:
        handle = x.register_hook(lambda g: g * 2)
        return x * 2, {handle.id: 1}

    def writes_input(x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda g: g * 2)
        x.mul_(3)
        return x * 2

    results = []
    for run in (writes_input, flashover.compile(writes_input)):
        w = torch.ones(3, requires_grad=True)
        run(w * 1).sum().backward()
        results.append(w.grad)
    torch.testing.assert_close(*results)
    for f in (written, asked):
        results = []
        for run in (f, flashover.compile(f)):
            x = torch.ones(3, requires_grad=True)
            out = run(x)
            if out.requires_grad:
                out.sum().backward()
            results.append((out.detach(), x.grad))
        torch.testing.assert_close(*results)
    _, numbers = flashover.compile(numbered)(torch.ones(3, requires_grad=True))
    assert all(isinstance(n, int) for n in numbers)


def calls_of_hooks() -> list[int]:
    calls: list[int] = []
    x = torch.randn(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: calls.append(1))
    y.sum().backward()
    return calls


class Noting(torch.autograd.Function):
    calls: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        Noting.calls.append(1)
        return g


def calls_of_functions() -> int:
    before = len(Noting.calls)
    x = torch.randn(3, requires_grad=True)
    Noting.apply(x).sum().backward()
    return len(Noting.calls) - before


def raises_in_backward() -> str:
    def fail(g: torch.Tensor) -> None:
        raise ValueError("from a hook")

    y = torch.randn(3, requires_grad=True) * 2
    y.register_hook(fail)
    try:
        y.sum().backward()
    except ValueError as e:
        return str(e)
    return "nothing raised"


@pytest.mark.parametrize("f", [calls_of_hooks, calls_of_functions, raises_in_backward])
def test_on_the_way_to_a_leaf_that_the_program_lets_go(f: Callable[[], Any]) -> None:
    """Its gradient is nobody's, and the backward runs all the same."""
    fast = flashover.compile(f)
    assert [fast(), fast()] == [f(), f()]


def test_a_table_of_hooks_that_the_program_writes_itself() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1
        y._backward_hooks = {"mine": 3}
        return y._backward_hooks

    assert flashover.compile(f)(torch.ones(2)) == {"mine": 3}
