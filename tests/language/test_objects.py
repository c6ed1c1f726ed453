"""Objects of the language and of C: named tuples, bound methods, iterators, classes being made, types of typing."""

from __future__ import annotations

import copy
import ctypes
import functools
import io
import itertools
import math
import operator
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from comparing import both_ways, captured_whole, same

import flashover

X = torch.linspace(-2, 2, 2 * 8 * 16).reshape(2, 8, 16)


class Pair(NamedTuple):
    left: torch.Tensor
    right: int = 2


class Wide(Pair):
    @property
    def product(self) -> torch.Tensor:
        return self.left * self.right


def test_named_tuples_as_arguments_and_results() -> None:
    def f(p: Wide, pairs: list[Pair]) -> Any:
        return p.product + p.left, p._replace(right=5), [a.left + b.left for a, b in itertools.pairwise(pairs)]

    captured_whole(f, Wide(X), [Pair(X + i) for i in range(3)])
    with torch.no_grad():
        assert type(flashover.compile(f)(Wide(X), [])[1]) is Wide


def test_methods_and_getters_made_by_pybind11() -> None:
    """They are wrapped in an instancemethod: a call of one ended the graph."""
    make = ctypes.pythonapi.PyInstanceMethod_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.py_object]
    root, double = make(math.sqrt), make(lambda x: x * 2)

    class Holder:
        size = property(make(lambda self: self.value * 3))

        def __init__(self, value: float) -> None:
            self.value = value

        quarter = make(lambda self: self.value / 4)

    holder = Holder(2.0)
    captured_whole(lambda x: double(x) * root(4.0) + holder.size + holder.quarter(), X[0])
    fast = flashover.compile(lambda x: x + holder.size, fullgraph=True)
    for holder.value in (2.0, 5.0):
        torch.testing.assert_close(fast(X[0]), X[0] + 3 * holder.value)


def test_classes_made_in_c_are_not_called_while_tracing():
    """PyTorchFileWriter wrote into the program's buffer: its class looked like one of Python's."""

    def save(x):
        buffer = io.BytesIO()
        torch.save(x, buffer)
        return buffer.getvalue()

    assert len(flashover.compile(save, backend="eager")(torch.ones(3))) == len(save(torch.ones(3)))


def test_items_that_a_slice_is_set_to() -> None:
    def program(new: list) -> list:
        items = [7, 8]
        items[1:] = new
        return items

    both_ways(program, ([1, 2],), ([3, 4],), ([5],), fullgraph=True)


def test_functions_with_globals_of_the_calls_own() -> None:
    def program() -> int:
        names = {"a": 0}
        function = types.FunctionType(compile("global a\na = 1", "x", "exec"), names)
        flashover.graph_break()
        function()
        return names["a"]

    both_ways(program, (), ())


def test_callables_handed_through_c() -> None:
    def program() -> tuple:
        part = functools.partial(print, 1)
        texts = repr(part), next(iter(itertools.repeat(part, 1))) is part
        counted = itertools.accumulate([None, None, None], operator.is_)
        next(counted)
        flashover.graph_break()
        again = counted if sys.version_info >= (3, 14) else copy.copy(counted)  # there none can be copied
        return texts, list(again), max([], default=print) is print

    both_ways(program, (), ())


def test_iterators_of_sets_at_a_break() -> None:
    def program() -> tuple:
        items = iter({5, 6, 7})
        next(items)
        flashover.graph_break()
        return type(items).__name__, operator.length_hint(items), list(items)

    both_ways(program, ())


def test_super_of_a_class_whose_order_is_being_made() -> None:
    def program() -> list:
        seen = []

        class Meta(type):
            def mro(cls):
                if cls.__mro__ is None:
                    try:
                        super(cls, cls).missing  # noqa: B018
                    except AttributeError:
                        seen.append("none")
                return type.mro(cls)

        class Made(metaclass=Meta):
            pass

        return seen

    both_ways(program, ())


def test_types_of_typing_stay_one_object() -> None:
    def program() -> tuple:
        items, maybe = list[int], typing.Optional[int]  # noqa: UP045
        of_any = typing.AbstractSet[Any]
        flashover.graph_break()
        same = of_any is typing.AbstractSet[Any], maybe is typing.Optional[int]  # noqa: UP045
        return same, maybe.__origin__ is typing.Union, items == list[int]

    both_ways(program, (), ())


class Box:
    def __init__(self) -> None:
        self.held: list[torch.Tensor] = []
        self.own = self.method  # refers to itself

    def method(self) -> Box:
        return self


def bound_method(x: torch.Tensor) -> list:
    box = Box()
    box.own.__self__.held.append(x + 1)
    return box.method.__self__.held


def bound_anew(x: torch.Tensor) -> list:
    box = Box()
    again = types.MethodType(box.method.__func__, box.method.__self__)
    again().held.append(x + 1)
    return box.held


def initializer(x: torch.Tensor) -> list:
    box = Box()
    box.__init__.__self__.held.append(x + 1)
    return box.held


def handed_to_partial(x: torch.Tensor) -> list:
    box = Box()
    functools.partial(box.method).func.__self__.held.append(x + 1)
    return box.held


def method_of_a_function_made_here(x: torch.Tensor) -> torch.Tensor:
    def plus(self: Box) -> torch.Tensor:
        return x + 1

    box = Box()
    function = types.MethodType(plus, box).__func__
    flashover.graph_break()
    return function(box)


def static_method_made_here(x: torch.Tensor) -> list:
    box = Box()
    staticmethod(box).__func__.held.append(x + 1)
    return box.held


def copied_with_its_method(x: torch.Tensor) -> tuple:
    box = Box()
    box.held.append(torch.nn.Parameter(x + 1))
    twin = copy.deepcopy(box)
    flashover.graph_break()
    twin.held.append(twin.own().held[0] * 2)
    return [t.detach() for t in box.held], [t.detach() for t in twin.held]


@pytest.mark.parametrize("program", [bound_method, bound_anew, initializer, handed_to_partial, static_method_made_here])
def test_what_a_method_is_bound_to_is_the_calls_own(program: Callable[[torch.Tensor], list]) -> None:
    """It was taken for one object that is there before and after: each call then found what others had put into it."""
    fast = flashover.compile(program)
    results = [fast(X * i) for i in range(3)]
    for i, got in enumerate(results):
        same(got, program(X * i))
    assert len({id(r) for r in results}) == 3


@pytest.mark.parametrize("program", [method_of_a_function_made_here, copied_with_its_method])
def test_what_a_method_leads_to_after_a_break(program: Callable[[torch.Tensor], Any]) -> None:
    fast = flashover.compile(program)
    for i in range(3):
        same(fast(X * i), program(X * i))


def test_functions_behind_methods_stay_one_object() -> None:
    def program(x: torch.Tensor) -> tuple:
        function = Box().method.__func__
        flashover.graph_break()
        return function is Box.method, x + 1

    fast = flashover.compile(program)
    assert all(fast(X)[0] for _ in range(2))
