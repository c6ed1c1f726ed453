"""What a call writes outside of tensors: attributes of classes and modules, weak references, thread-locals."""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from comparing import both_ways, captured_whole

import flashover


class Base:
    scale = 2
    last: Any = None


class Derived(Base):
    pass


def test_class_attributes_are_written() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        Base.last = x.shape
        Base.scale = 3
        return x * Derived.scale + Derived().scale

    fast = flashover.compile(f, fullgraph=True)
    with torch.no_grad():
        for x in (torch.ones(3), torch.ones(4), torch.ones(3)):
            Base.scale, Base.last = 2, None
            assert torch.equal(fast(x), x * 3 + 3)
            assert Base.last == x.shape and Base.scale == 3 and "scale" not in vars(Derived)
    Derived.scale = 5
    with torch.no_grad():
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 10.0))
    del Derived.scale


def test_a_module_found_by_the_import_system_is_written() -> None:
    module = types.ModuleType("flashover_test_patched")
    module.value = 1
    sys.modules[module.__name__] = module

    def program() -> int:
        with mock.patch("flashover_test_patched.value", 5):
            flashover.graph_break()
            return module.value

    try:
        both_ways(program, ())
        assert module.value == 1
    finally:
        del sys.modules[module.__name__]


def test_references_kept_by_the_program() -> None:
    kept: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    class Key:
        pass

    key = Key()

    def program() -> int:
        kept[key] = 3
        return kept[key]

    both_ways(program, (), fullgraph=True)
    assert list(kept.items()) == [(key, 3)]


Tensor = torch.Tensor


def x() -> Tensor:
    return torch.arange(12.0).reshape(3, 4) * 0.1


def test_thread_local_is_written() -> None:
    local = threading.local()

    def f(a: Tensor) -> Tensor:
        local.kept = a + 1
        return a * 2

    c = flashover.compile(f)
    for k in (1, 2):
        assert torch.equal(c(x() * k), x() * k * 2) and torch.equal(local.kept, x() * k + 1)


def some_function() -> None: ...


@pytest.mark.parametrize("name", ["__globals__", "__closure__", "__builtins__"])
@pytest.mark.parametrize("change", [lambda o, name: setattr(o, name, None), delattr], ids=["set", "delete"])
def test_a_write_that_is_refused_is_no_effect(name: str, change: Callable[..., None]) -> None:
    """It was written down first, and its error came a second time, where the program could not catch it."""

    def program(x: torch.Tensor) -> tuple:
        try:
            change(some_function, name)
        except AttributeError as e:
            return x + 1, str(e)
        return x, ""

    captured_whole(program, torch.ones(2))
