"""Tensors that wrap others by __torch_dispatch__, in training: gradients, results and writes are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from wrapper_tensors import DispatchedInt8Weight, Int8Weight, Scaled

import flashover


def two(*size: int, grad: bool = True) -> TwoTensor:
    return TwoTensor(torch.randn(*size), torch.randn(*size)).requires_grad_(grad)


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, Tensor):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        assert (a.requires_grad, a.is_leaf) == (b.requires_grad, b.is_leaf)
        if hasattr(a, "__tensor_flatten__"):
            names, context = a.__tensor_flatten__()
            assert (names, context) == b.__tensor_flatten__()
            for name in names:
                same(getattr(a, name), getattr(b, name))
        else:
            torch.testing.assert_close(a, b)
    else:
        assert a == b


def tensors_of(o: Any) -> list[Tensor]:
    return [o] if isinstance(o, Tensor) else [t for item in o for t in tensors_of(item)]


def step(function: Callable[..., Any], args: Any) -> list[Any]:
    """Results, and gradients of what requires grad among the arguments."""
    made = function(*args)
    losses = [t.sin().sum() for t in tensors_of(made) if t.requires_grad]
    if losses:
        torch.autograd.backward(losses)
    return [made, [a.grad for a in args if isinstance(a, Tensor)]]


def trained(function: Callable[..., Any], *args: Any, calls: int = 2) -> Any:
    """It is one graph; results, gradients and what was written are eager's."""
    fast = flashover.compile(function, fullgraph=True)
    for _ in range(calls):
        mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
        same(step(fast, mine), step(function, theirs))
        same(mine, theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert not isinstance(a, Tensor) or a._version == b._version
    return fast


FUNCTIONS: list[Callable[..., Any]] = [
    lambda t: t * 2,
    lambda t: torch.sin(t).cos(),
    lambda t: (t + 1, (t * t).sum(0)),
    lambda t: t.t() @ t,
    lambda t: torch.nn.functional.layer_norm(t, (4,)),
    lambda t: t.softmax(-1).reshape(12),
    lambda t: torch.cat([t, t * 2]).relu(),
    lambda t: t.exp().chunk(2, 1)[0] * 3,
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_are_of_the_class(function: Callable[..., Any]) -> None:
    trained(function, two(3, 4))


def test_backends_of_others_train_too() -> None:
    for backend in ("eager", "aot_eager", lambda gm, inputs: gm.forward):
        mine, theirs = two(3, 4), None
        theirs = copy.deepcopy(mine)
        fast = flashover.compile(lambda t: t.sin() * 2, fullgraph=True, backend=backend)
        same(step(fast, [mine]), step(lambda t: t.sin() * 2, [theirs]))


def test_two_that_require_grad_and_a_plain_one() -> None:
    def function(t: Tensor, u: Tensor, x: Tensor) -> Any:
        return t * u + x, (u * x).sum()

    trained(function, two(3, 4), two(3, 4), torch.randn(3, 4))
    trained(function, two(3, 4), two(3, 4, grad=False), torch.randn(3, 4, requires_grad=True))
    trained(function, two(3, 4, grad=False), two(3, 4), torch.randn(4, requires_grad=True))


def test_a_linear_layer_of_pairs() -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, w, b).relu()

    trained(function, torch.randn(5, 4), two(3, 4), two(3))
    trained(function, two(5, 4), torch.randn(3, 4, requires_grad=True), torch.randn(3, requires_grad=True))


def test_parameters_of_a_module_and_an_optimizer() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        for layer in (made[0], made[2]):
            w = layer.weight.detach()
            layer.weight = nn.Parameter(TwoTensor(w.clone(), w.clone() * 2))
        return made

    mine, theirs = model(), model()
    fast = flashover.compile(mine, fullgraph=True)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (mine, theirs)]
    for _ in range(3):
        x = torch.randn(5, 8)
        for m, optimizer in zip((fast, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            m(x).square().sum().backward()
            optimizer.step()
        same([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()])
        same(list(mine.parameters()), list(theirs.parameters()))
    assert len(flashover.live(fast).versions) == 1


@pytest.mark.parametrize("kind", [Int8Weight, DispatchedInt8Weight])
def test_activations_train_around_quantized_weights(kind: type[Int8Weight]) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    for layer in (model[0], model[2]):
        layer.weight = nn.Parameter(kind.of(layer.weight.detach()), requires_grad=False)
    x = torch.randn(5, 8, requires_grad=True)
    fast = flashover.compile(model, fullgraph=True)
    got, wanted = (torch.autograd.grad(m(x).square().sum(), [x, model[0].bias]) for m in (fast, model))
    same(got, wanted)


def test_a_plain_gradient_of_a_quantized_weight() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    weight = DispatchedInt8Weight.of(torch.randn(8, 8))
    x = torch.randn(5, 8)
    trained(lambda w, x: x @ w, weight.requires_grad_(), x)


def test_history_of_an_argument_goes_on() -> None:
    def outer(function: Callable[..., Any], t: Tensor) -> Any:
        return function(t * 2) + 1

    def function(t: Tensor) -> Tensor:
        return t.sin() * t

    fast = flashover.compile(function, fullgraph=True)
    mine, theirs = two(3, 4), None
    theirs = copy.deepcopy(mine)
    same(step(lambda t: outer(fast, t), [mine]), step(lambda t: outer(function, t), [theirs]))


def test_what_does_not_lead_to_an_argument_has_no_gradient() -> None:
    def function(t: Tensor, u: Tensor) -> Any:
        return t * 2, u * 3

    fast = flashover.compile(function, fullgraph=True)
    t, u = two(3), two(3)
    fast(t, u)[0].sum().backward()
    assert u.grad is None
    same(t.grad, TwoTensor(torch.full((3,), 2.0), torch.full((3,), 2.0)))


def test_gradients_accumulate() -> None:
    t = two(3)
    fast = flashover.compile(lambda t: t * 2, fullgraph=True)
    for _ in range(2):
        fast(t).sum().backward()
    same(t.grad, TwoTensor(torch.full((3,), 4.0), torch.full((3,), 4.0)))


def test_a_gradient_of_another_class_is_an_error() -> None:
    made = flashover.compile(lambda t: t * 2, fullgraph=True)(two(3))
    with pytest.raises(RuntimeError, match="it is a Tensor, not a TwoTensor"):
        made.backward(torch.ones(3))


def test_pairs_of_pairs() -> None:
    def nested(grad: bool) -> TwoTensor:
        return TwoTensor(two(3, 4, grad=False), two(3, 4, grad=False)).requires_grad_(grad)

    trained(lambda t, u: t * u + 1, nested(True), nested(False))
    trained(lambda t, x: t.sum(1) * x, nested(True), torch.randn(3, requires_grad=True))


def test_another_context_is_another_version() -> None:
    fast = flashover.compile(lambda t: t * 2 + 1, fullgraph=True)
    for factor in (2.0, 3.0, 2.0):
        x = torch.randn(3)
        mine, theirs = (Scaled(x.clone(), factor).requires_grad_() for _ in range(2))
        same(step(fast, [mine]), step(lambda t: t * 2 + 1, [theirs]))
    assert len(flashover.live(fast).versions) == 2


def test_sizes_that_change() -> None:
    def function(t: Tensor, x: Tensor, y: Tensor) -> Any:
        return (t.sin() * x).sum(1), y * 2

    fast = flashover.compile(function, fullgraph=True)
    for n in (3, 4, 5, 6):
        mine = (two(n, 4), torch.randn(n, 4, requires_grad=True), torch.randn(n, 4, requires_grad=True))
        theirs = copy.deepcopy(mine)
        same(step(fast, mine), step(function, theirs))


def test_the_class_of_a_gradient_follows_the_results_that_are_used() -> None:
    def function(t: Tensor, x: Tensor) -> Any:
        return t * x, x * 2

    fast = flashover.compile(function)
    t, x = two(3), torch.randn(3, requires_grad=True)
    for result in (0, 1):
        got, wanted = (torch.autograd.grad(f(t, x)[result].sum(), x) for f in (fast, function))
        same(got, wanted)


def test_a_gradient_of_a_class_for_a_plain_result_is_an_error() -> None:
    made = flashover.compile(lambda x: x * 2, fullgraph=True)(torch.randn(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="is of a tensor subclass"):
        made.backward(two(3, grad=False))


WRITES: list[Callable[..., Any]] = [
    lambda t: t.add_(1),
    lambda t: (t.mul_(2).add_(1), t + 1),
    lambda t: (t.copy_(t * 2), None)[0].sum(),
]


@pytest.mark.parametrize("function", WRITES)
def test_one_from_before_the_call_is_written(function: Callable[..., Any]) -> None:
    trained(function, two(3, 4, grad=False))
    mine, theirs = Scaled(torch.ones(3), 2.0), Scaled(torch.ones(3), 2.0)
    fast = flashover.compile(function, fullgraph=True)
    got = fast(mine)
    same(got, function(theirs))
    same(mine, theirs)
    assert mine._version == theirs._version
    first = got[0] if isinstance(got, tuple) else got
    assert first is mine or first.dim() == 0


def test_a_leaf_is_written_without_grad() -> None:
    def function(t: Tensor, g: Tensor) -> Any:
        with torch.no_grad():
            t.add_(g, alpha=-0.1)
        return ()

    trained(function, two(3, 4), two(3, 4, grad=False))


@pytest.mark.parametrize(
    "function",
    [
        lambda t: (t.detach(), t * 2),
        lambda t: t.view(12),
        lambda t: (t * 2).add_(1).unbind(0),
        lambda t: (t * 2).a,
        lambda t: ((t * 2).view(12), t * 2),
    ],
)
def test_views_and_parts_are_as_eager_has_them(function: Callable[..., Any]) -> None:
    """Compiled or not."""
    mine, theirs = two(3, 4), None
    theirs = copy.deepcopy(mine)
    fast = flashover.compile(function)
    got, wanted = fast(mine), function(theirs)
    same(got, wanted)


def test_writes_under_autograd_are_eager() -> None:
    def function(t: Tensor) -> Tensor:
        u = t * 2
        u.mul_(3)
        return u.sin()

    trained(function, two(3, 4))
    base = two(3, 4)
    same(step(flashover.compile(lambda t: (t * 1).mul_(2)), [copy.deepcopy(base)]), step(lambda t: t * 2, [base]))


def test_a_graph_break_between() -> None:
    def function(t: Tensor) -> Tensor:
        y = t.sin()
        flashover.graph_break()
        return y * t

    mine = two(3, 4)
    theirs = copy.deepcopy(mine)
    same(step(flashover.compile(function), [mine]), step(function, [theirs]))
