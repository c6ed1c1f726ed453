"""Gradients are eager's: formulas that look at values, corners, views that are written, checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import captured_whole, whole
from torch import nn

import flashover

X = torch.linspace(-2, 2, 2 * 8 * 16).reshape(2, 8, 16)


VALUE_READING_GRADIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "max": lambda x: x.max() * 2,
    "min": lambda x: x.min().exp(),
    "median": lambda x: x.median() + x.nanmedian(),
    "cumprod": lambda x: x.cumprod(0).tanh(),
    "prod": lambda x: x.prod() + x.prod(0).sum(),
    "masked_fill": lambda x: x.masked_fill(x > 0.3, x.mean()),
    "norm": lambda x: torch.linalg.vector_norm(x, 4),
    "multi_margin": lambda x: F.multi_margin_loss(x, torch.tensor([1, 0, 2])),
    "multilabel_margin": lambda x: F.multilabel_margin_loss(x, torch.tensor([[1, 0, -1, 0]] * 3)),
    "index_reduce": lambda x: x.index_reduce(0, torch.tensor([0, 0, 2]), x.sin(), "mean"),
}


@pytest.mark.parametrize("name", VALUE_READING_GRADIENTS)
def test_gradients_whose_formulas_look_at_values(name: str) -> None:
    """Eager's derivative looks at values to take a shorter way; in a trace it takes the general one."""
    f = VALUE_READING_GRADIENTS[name]
    x = torch.tensor([[0.5, -0.25, 2.0, 0.0], [1.5, 2.0, -0.75, 0.25], [-1.0, 0.5, 0.0, 1.0]])
    flashover.reset()
    fast = flashover.compile(f, fullgraph=True, backend="eager")
    grads = []
    for call in (fast, f):
        leaf = x.clone().requires_grad_()
        grads.append(torch.autograd.grad(call(leaf).sum(), leaf)[0])
    torch.testing.assert_close(*grads)


# torch.export looks at every operator that torch.ops has ever named, and raises where one is gone.
KEPT: list[torch.library.Library] = []


def test_operators_of_the_program_without_a_derivative() -> None:
    """Eager differentiates the calls inside their kernels; a graph cannot: it said that there is no gradient."""
    library = torch.library.Library("flashover_found", "DEF")
    KEPT.append(library)
    library.define("twice(Tensor x) -> Tensor")
    library.define("double_(Tensor(a!) x) -> ()")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

    def double_(x: torch.Tensor) -> None:
        x.mul_(2)

    library.impl("double_", double_, "CPU")

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch.ops.flashover_found.double_(y)
        return torch.ops.flashover_found.twice(y) + y

    captured_whole(f, X[0])
    grads = []
    for call in (flashover.compile(f), f):
        x = X[0].clone().requires_grad_()
        grads.append(torch.autograd.grad(call(x).sum(), x)[0])
    torch.testing.assert_close(*grads)


def test_gradients_of_a_median_of_nothing() -> None:
    x = torch.randn(8, 0, 33, requires_grad=True)
    fast = flashover.compile(lambda x: x.median(2)[0] * 2, fullgraph=True)
    fast(x).sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape and flashover.compile_stats()["graphs"] > 0


def test_hardswish_at_its_corners() -> None:
    def gradient(f) -> torch.Tensor:
        x = torch.tensor([-3.0, 3.0, -2.5, 2.5, -4.0, 4.0], requires_grad=True)
        f(x).sum().backward()
        return x.grad

    torch.testing.assert_close(gradient(flashover.compile(F.hardswish)), gradient(F.hardswish))


def gradients_of(f, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    out = f(x)
    (out * torch.arange(1.0, out.numel() + 1).view(out.shape)).sum().backward()
    return x.grad


@pytest.mark.parametrize("backend", ["eager", "flashover"])
def test_gradients_of_a_written_view_behind_another_part(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        t = x * 3
        t.diagonal().add_(1)
        return torch.cat([x.flatten(), t.flatten()])

    x = torch.randn(4, 3, 2)
    compiled = flashover.compile(program, backend=backend)
    torch.testing.assert_close(gradients_of(compiled, x), gradients_of(program, x))


def test_as_strided_of_a_view_reaches_no_further_than_eager() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.unbind(1)[0].as_strided((2, 2), (1, 1))

    x = torch.randn(4, 16)
    torch.testing.assert_close(gradients_of(flashover.compile(program), x), gradients_of(program, x))


def return_the_function(module: torch.fx.GraphModule, examples: list[torch.Tensor]):
    return module.forward


@pytest.mark.parametrize("backend", ["eager", "flashover", return_the_function])
def test_results_of_a_graph_are_views_of_nothing_unseen(backend) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        t = torch.stack([x, x], -1).flatten(-2)
        flashover.graph_break()
        t.add_(1)  # a view of a leaf, autograd said
        return t * 2

    x = torch.randn(4, 3)
    torch.testing.assert_close(gradients_of(flashover.compile(program, backend=backend), x), gradients_of(program, x))


Tensor = torch.Tensor


def x() -> Tensor:
    return torch.arange(12.0).reshape(3, 4) * 0.1


def test_gradient_set_on_a_new_tensor() -> None:
    def f(a: Tensor) -> Tensor:
        y = a + 1
        y.grad = a * 2
        y.note = "n"
        return y

    got = whole(f)(x())
    assert got.grad is not None and torch.equal(got.grad, x() * 2) and got.note == "n"


def test_a_loss_and_its_gradients() -> None:
    layer = nn.Linear(4, 3)

    def step(a: Tensor) -> Any:
        loss = (layer(a) ** 2).sum()
        return loss, *torch.autograd.grad(loss, list(layer.parameters()))

    c, before = flashover.compile(step), flashover.compile_stats()
    got, want = c(x()), step(x())
    torch.testing.assert_close(got, want)
    assert got[0].requires_grad and flashover.compile_stats()["frames"] > before["frames"]
    with pytest.raises(RuntimeError, match="second time"):
        got[0].backward()


@pytest.mark.parametrize("kept", ["selected", "no random state"])
def test_checkpoints_with_more_to_say(kept: str) -> None:
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.PREFER_RECOMPUTE

    how: dict[str, Any] = {"preserve_rng_state": False}
    if kept == "selected":
        how = {"context_fn": functools.partial(create_selective_checkpoint_contexts, policy)}

    def f(a: Tensor) -> Tensor:
        return checkpoint(lambda v: v.sin() * v, a, use_reentrant=False, **how).sum()

    a, b = x().requires_grad_(), x().requires_grad_()
    whole(f)(a).backward()
    f(b).backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_a_backward_that_keeps_nothing_runs_as_often_as_it_is_asked() -> None:
    for f in (lambda x: (x + x).sum(), flashover.compile(lambda x: (x + x).sum())):
        x = torch.ones(3, requires_grad=True)
        y = f(x)
        y.backward()
        y.backward()
        assert torch.equal(x.grad, torch.full((3,), 4.0))
    x = torch.ones(3, requires_grad=True)
    y = flashover.compile(lambda x: (x * x).sum())(x)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
