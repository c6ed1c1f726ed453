"""Iterators that stand in a container which the call wrote before, where the graph breaks in the walk."""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

import flashover


def stop(value: Any = 0) -> Any:
    time.sleep(0)  # no graph holds it
    return value


def append(a: list[int]) -> None:
    a.append(1)
    a.append(2)
    a.append(3)


def shrink(a: Any) -> None:
    a.pop()
    a.insert(0, 7)


def update(a: Any) -> None:
    a.update({1: 2, 3: 4})


WALKS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Iterable[Any]]]] = {
    "list": (list, append, iter),
    "backwards": (list, append, reversed),
    "numbered": (list, append, enumerate),
    "twice at once": (list, append, lambda a: zip(a, a, strict=True)),
    "one behind the other": (list, append, lambda a: itertools.chain(a, a)),
    "every second": (list, append, lambda a: itertools.islice(a, 0, 3, 2)),
    "generator": (list, append, lambda a: (v + 1 for v in a)),
    "pairs": (list, append, itertools.pairwise),
    "list that shrank": (lambda: [1, 2, 3], shrink, iter),
    "dict": (lambda: {0: 0}, update, lambda a: a.items()),
    "ordered dict": (collections.OrderedDict, update, reversed),
    "set": (set, update, iter),
    "deque": (collections.deque, append, iter),
}


@pytest.mark.parametrize("name", list(WALKS))
def test_walk(name: str) -> None:
    make, write, walk = WALKS[name]

    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[Any], Any]:
        y, a, seen = x.cos(), make(), []
        stop()  # `a` is from before the graph behind this
        write(a)
        for v in walk(a):
            seen.append(v)
            stop()
        return y, seen, a

    x = torch.ones(3)
    compiled = flashover.compile(f)
    for _ in range(2):
        assert compiled(x)[1:] == f(x)[1:]


def test_comprehensions_in_functions_that_call_themselves() -> None:
    def all_of(t: Any) -> Any:
        if not isinstance(t, list):
            return t
        parts = []
        for part in sorted(t, key=lambda _: stop()):
            parts.append(part)
        return [all_of(part) for part in parts]

    def f(x: torch.Tensor, t: Any) -> tuple[torch.Tensor, Any]:
        return x.cos(), all_of(t)

    for tree in ([[3]], [[[3, 4], 1]], [[1, [3, 4]], [2]]):
        assert flashover.compile(f)(torch.ones(3), tree)[1] == tree


def test_a_list_that_grows_in_the_walk() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[int], list[int]]:
        y, a, seen = x.cos(), [1, 2], []
        stop()
        a.append(3)
        for v in a:
            seen.append(v)
            if v < 3:
                a.append(v + 5)
            stop()
        return y, seen, a

    assert flashover.compile(f)(torch.ones(3))[1:] == f(torch.ones(3))[1:]


@pytest.mark.parametrize(
    "make",
    [zip, itertools.chain, itertools.product, itertools.zip_longest, lambda: np.ndindex()],
    ids=["zip", "chain", "product", "zip_longest", "ndindex"],
)
def test_iterators_over_nothing(make: Callable[[], Any]) -> None:
    """Their state has no items."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        it = make()
        y = x.cos()
        stop()
        return y, it

    assert list(flashover.compile(f)(torch.ones(3))[1]) == list(make())
    assert list(flashover.compile(lambda x: (x + 1, make()))(torch.ones(3))[1]) == list(make())
