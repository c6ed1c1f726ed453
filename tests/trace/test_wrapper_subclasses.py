"""Tensors that wrap others by __torch_dispatch__: their class's Python is part of the program, results are of their
class, and what they are made of is guarded."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from wrapper_tensors import DispatchedInt8Weight, Int8Weight, Scaled

import flashover

aten = torch.ops.aten


def parts(o: Any) -> list[Any]:
    """Tensors of a result and, of wrappers, class, context, sizes, strides and what they are made of."""
    if isinstance(o, (list, tuple)):
        return [p for item in o for p in parts(item)]
    if isinstance(o, Tensor) and hasattr(o, "__tensor_flatten__"):
        names, context = o.__tensor_flatten__()
        own = [type(o), context, o.shape, o.stride(), o.dtype, o.requires_grad]
        return own + [p for name in names for p in parts(getattr(o, name))]
    return [o]


def check(got: Any, wanted: Any) -> None:
    got, wanted = parts(got), parts(wanted)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
        else:
            assert a == b


def compiled(function: Callable[..., Any], *args: Any, calls: int = 2) -> Any:
    """It is one graph, and gives what the function gives."""
    fast = flashover.compile(function, fullgraph=True)
    for _ in range(calls):
        check(fast(*args), function(*args))
    return fast


def quantized(kind: type[Int8Weight]) -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4, bias=False))
    for layer in (model[0], model[2]):
        layer.weight = nn.Parameter(kind.of(layer.weight.detach()), requires_grad=False)
    return model.requires_grad_(False)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", [Int8Weight, DispatchedInt8Weight])
def test_weights_of_eight_bits(kind: type[Int8Weight], mode: Any) -> None:
    model = quantized(kind)
    with mode():
        fast = compiled(model, torch.randn(5, 8))
        assert len(flashover.live(fast).versions) == 1
        check(fast(torch.randn(7, 8)).shape, torch.Size([7, 4]))


def test_one_version_for_all_sizes() -> None:
    model = quantized(Int8Weight)
    with torch.no_grad():
        fast = flashover.compile(model, fullgraph=True)
        for batch, length in ((2, 16), (3, 17), (4, 32), (5, 9)):
            x = torch.randn(batch, length, 8)
            check(fast(x), model(x))
    assert len(flashover.live(fast).versions) == 2


def test_operators_that_a_class_sees_among_plain_ones_of_varying_sizes() -> None:
    def function(t: Any, x: Tensor) -> Any:
        y = torch.matmul(x, torch.ones(8, 3)).reshape(-1, 3)
        return torch.matmul(x, t).inner, (t * 2).inner, y

    t = Scaled(torch.randn(8, 4), 2.0)
    fast = flashover.compile(function, fullgraph=True)
    for batch in (2, 3, 4):
        x = torch.randn(batch, 5, 8)
        check(fast(t, x), function(t, x))


class Described(Scaled):
    """What it does with an operator is in a table by operators without overloads, which another table shows."""

    TABLE = types.MappingProxyType({aten.mul: 3.0})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return args[0].inner * cls.TABLE.get(func.overloadpacket, 5.0)


def test_a_table_by_operators() -> None:
    behind = {aten.mul: 3.0}
    Described.TABLE = types.MappingProxyType(behind)
    fast = flashover.compile(lambda t: (t * 2, t + 1), fullgraph=True)
    t = Described(torch.randn(3), 2.0)
    check(fast(t), (t.inner * 3, t.inner * 5))
    behind[aten.add] = 7.0
    check(fast(t), (t.inner * 3, t.inner * 7))


def test_gradients_go_around_the_weights() -> None:
    model = quantized(Int8Weight)
    x = torch.randn(5, 8, requires_grad=True)
    (mine,) = torch.autograd.grad(flashover.compile(model, fullgraph=True)(x).sum(), x)
    (theirs,) = torch.autograd.grad(model(x).sum(), x)
    torch.testing.assert_close(mine, theirs)


def test_another_weight_of_the_same_kind_is_used() -> None:
    model = quantized(Int8Weight)
    x = torch.randn(5, 8)
    fast = flashover.compile(model, fullgraph=True)
    check(fast(x), model(x))
    model[0].weight = nn.Parameter(Int8Weight.of(torch.randn(16, 8)), requires_grad=False)
    check(fast(x), model(x))
    with torch.no_grad():
        model[0].weight.int_data.zero_()
    check(fast(x), model(x))
    model[0].weight = nn.Parameter(torch.randn(16, 8), requires_grad=False)
    check(fast(x), model(x))


@torch.library.custom_op("wrapper_subclasses::doubled", mutates_args=())
def doubled(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) * 2


@doubled.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


doubled.register_autograd(lambda ctx, grad: (grad * 2, grad * 2))


def test_a_registered_operator_calls_the_class() -> None:
    """Its kernel for autograd is a library's Python code; the class that it meets is the program's."""
    two, other = (TwoTensor(torch.randn(3), torch.randn(3)) for _ in range(2))
    compiled(lambda t, o: doubled(t, o), two, other)
    compiled(lambda t, o: torch.ops.wrapper_subclasses.doubled(t, o) * 2, two, other)
    fast = flashover.compile(lambda t, o: doubled(t, o), fullgraph=True)
    for _ in range(2):
        two = TwoTensor(torch.randn(3), torch.randn(3))
        check(fast(two, other), doubled(two, other))
    assert len(fast.versions) == 1


def test_results_are_wrapped() -> None:
    two = TwoTensor(torch.ones(3, 4), torch.randn(3, 4))
    compiled(lambda t: torch.sin(t) * 2, two)
    compiled(lambda t: (t.t() + 1, t.view(12)), two)
    compiled(lambda t: t, two)
    compiled(lambda t: t.a * 2 + t.b, two)
    compiled(lambda a, b: TwoTensor(a * 2, b) + 1, torch.randn(3), torch.randn(3))
    compiled(lambda t: TwoTensor(t, t * 2).sum(), two)


def test_what_it_holds_beside_tensors_is_guarded() -> None:
    fast = flashover.compile(lambda t: t * 2, fullgraph=True)
    for value in (Scaled(torch.ones(3), 2.0), Scaled(torch.ones(3), 3.0), Scaled(torch.ones(4), 3.0), torch.ones(4)):
        check(fast(value), value * 2)


def test_a_class_that_changes_is_another_version() -> None:
    class Other(Scaled):
        pass

    fast = flashover.compile(lambda t: t + 1, fullgraph=True)
    x = Other(torch.ones(3), 2.0)
    check(fast(x), x + 1)

    def twice(cls: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return Scaled.__torch_dispatch__.__func__(cls, func, types, args, kwargs).inner * 2

    Other.__torch_dispatch__ = classmethod(twice)
    check(fast(x), x + 1)


def test_a_graph_break_between() -> None:
    def function(t: Any) -> Any:
        y = t * 2
        flashover.graph_break()
        return y + 1, y.inner

    t = Scaled(torch.randn(3), 3.0)
    check(flashover.compile(function)(t), function(t))


def test_one_made_inside_may_be_written() -> None:
    def function(x: Tensor) -> Any:
        t = Scaled(x * 2, 3.0)
        t.add_(1)
        return t, t.inner + x

    compiled(function, torch.randn(3))


def test_nothing_of_the_trace_is_left_in_a_wrapper() -> None:
    t = Scaled(torch.randn(3), 3.0)
    flashover.compile(lambda t: (t * 2).inner, fullgraph=True)(t)
    gc.collect()
    assert t.inner.untyped_storage().data_ptr() != 0
    check(t + 1, Scaled(t.inner + 1, 3.0))


class Stated(Tensor):
    """Says of itself that it has other sizes than its memory."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Stated:
        made = Tensor._make_wrapper_subclass(cls, (1,), dtype=inner.dtype, dispatch_sizes_strides_policy="sizes")
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], context: None, size: Any, stride: Any) -> Stated:
        return Stated(parts["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner = args[0].inner
        if func in (aten.numel.default, aten.sym_numel.default):
            return inner.numel()
        if func in (aten.size.default, aten.sym_size.default):
            return inner.size()
        if func in (aten.stride.default, aten.sym_stride.default):
            return inner.stride()
        if func == aten.dim.default:
            return inner.dim()
        return func(inner, *args[1:], **(kwargs or {}))


def test_a_class_that_answers_for_its_sizes():
    def f(x: Stated) -> Any:
        return x.numel() * x.size(1), x.dim(), torch.mul(x, x.numel())

    compiled(f, Stated(torch.randn(2, 3)))
