"""Weak mappings, and classes whose `__call__` calls that of a base in C (weak references, partial functions)."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

import pytest
import torch
from torch.utils.weak import WeakIdKeyDictionary

import flashover

KNOWN = WeakIdKeyDictionary()


class Key:
    pass


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_key_that_dies_in_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        key = Key()
        KNOWN[key] = x.shape[0]
        y = x * KNOWN[key]
        del key
        return y + 1, len(KNOWN)

    fast = flashover.compile(f, fullgraph=True)
    for n in (3, 3, 4):
        x = torch.ones(n)
        y, length = fast(x)
        torch.testing.assert_close(y, x * n + 1)
        assert length == len(KNOWN) == 0
    assert not said
    assert runs_in_a_graph(f, torch.ones(5))


class Ref(weakref.ref):  # type: ignore[type-arg]
    def __call__(self) -> Any:
        return super().__call__()


class Twice(functools.partial):  # type: ignore[type-arg]
    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args) * 2


class Weight:
    def __init__(self, value: float) -> None:
        self.value = value


def test_a_class_of_weak_references() -> None:
    weight = Weight(2.0)
    kept = Ref(weight)

    def f(x: torch.Tensor) -> Any:
        target = kept()
        made = Ref(f)
        return None if target is None else x * target.value, made() is f

    fast = flashover.compile(f, fullgraph=True)
    x = torch.ones(3)
    for value in (2.0, 3.0):
        weight.value = value
        torch.testing.assert_close(fast(x)[0], x * value)
    assert fast(x)[1]
    assert runs_in_a_graph(f, x)
    del weight
    assert fast(x) == (None, True)


def test_a_class_of_partial_functions() -> None:
    kept = Twice(torch.add, torch.ones(3), alpha=2)

    def f(x: torch.Tensor) -> torch.Tensor:
        return kept(x) + Twice(torch.mul, x)(3)

    fast = flashover.compile(f, fullgraph=True)
    for n in (1.0, 2.0):
        torch.testing.assert_close(fast(torch.full((3,), n)), f(torch.full((3,), n)))
    assert runs_in_a_graph(f, torch.ones(3))


def runs_in_a_graph(f: Any, *args: Any) -> bool:
    return "nothing runs eager" in str(flashover.explain(f)(*args))
