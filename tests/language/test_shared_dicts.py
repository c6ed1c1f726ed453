"""Objects whose attributes are a dict that others hold: `self.__dict__ = shared`, as accelerate's states have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

import flashover

X = torch.ones(2)


class State:
    shared: ClassVar[dict[str, Any]] = {}

    def __init__(self, value: Any, between: Callable[[], None] = lambda: None) -> None:
        self.__dict__ = State.shared
        if not State.shared:
            self.first = value
            between()
            self.second = [value]
        self.value = value


def attribute(x: torch.Tensor, value: int) -> Any:
    return x + 1, State(value).value


def deleted(x: torch.Tensor, value: int) -> Any:
    state = State(value)
    if hasattr(state, "first"):
        del state.first
    return x + 1, state.second


def around_a_break(x: torch.Tensor, value: int) -> Any:
    y = x + 1
    state = State(value, flashover.graph_break)
    return y, state.second


def handed_out(x: torch.Tensor, value: int) -> Any:
    a, b = State(value), State(value + 1)
    return x + 1, a.__dict__ is State.shared, b.value, a.value


@pytest.mark.parametrize("program", [attribute, deleted, around_a_break, handed_out])
def test_each_call_writes_what_is_shared(program: Callable[[torch.Tensor, int], Any]) -> None:
    fast = flashover.compile(program)
    for value in (1, 1, 1, 2, 2, 3):
        State.shared.clear()
        want = program(X, value)[1:]
        shared = dict(State.shared)
        State.shared.clear()
        assert fast(X, value)[1:] == want
        assert State.shared == shared
        assert fast(X, value)[1:] == program(X, value)[1:]  # once more, with what is there
    State.shared.clear()


class Record:
    def __init__(self, attributes: dict[str, Any]) -> None:
        self.__dict__ = attributes


def test_objects_over_one_dict_stay_over_one() -> None:
    def program(x: torch.Tensor) -> Any:
        attributes = {"x": x + 1}
        return Record(attributes), Record(attributes), attributes

    fast = flashover.compile(program)
    for i in range(3):
        a, b, attributes = fast(X * i)
        assert a.__dict__ is b.__dict__ is attributes
        assert torch.equal(b.x, X * i + 1)


def test_a_result_is_over_the_dict_from_before() -> None:
    def program(x: torch.Tensor) -> Any:
        return State(3), x + 1

    State.shared.clear()
    fast = flashover.compile(program)
    for _ in range(3):
        assert fast(X)[0].__dict__ is State.shared
    State.shared.clear()
