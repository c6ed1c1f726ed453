"""Objects of the program that change between calls are read anew."""

from __future__ import annotations

import array
import collections
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import flashover

Tensor = torch.Tensor


class Words(dict):
    pass


class Row(list):
    pass


class Name(str):
    pass


class Count(int):
    pass


class Held:
    def __init__(self) -> None:
        self._v = 1

    v = property(operator.attrgetter("_v"))


def state() -> types.SimpleNamespace:
    s = types.SimpleNamespace(
        w=np.array([1.0, 2, 3, 4], np.float32), words=Words(a=1), count=collections.Counter("aab"), row=Row([1, 2]),
        name=Name("ab"), number=Count(3), held=Held(), raw=bytearray(b"abc"), array=array.array("f", [1, 2]),
        base={"a": 1},
    )  # fmt: skip
    s.proxy, s.tail = types.MappingProxyType(s.base), s.w[1:]
    s.keys, s.items = s.base.keys(), s.base.items()
    return s


READS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: float(s.w[1]), "s.w[1] = 9"),
    (lambda s: torch.tensor(s.w * 2), "s.w[1] = 9"),
    (lambda s: torch.as_tensor(s.w), "s.w[1] = 9"),
    (lambda s: sum(list(s.w)), "s.w[1] = 9"),
    (lambda s: float(s.tail[0]), "s.w[1] = 9"),
    (lambda s: 1 if s.w[1] > 5 else 2, "s.w[1] = 9"),
    (lambda s: float(s.w.T[1]), "s.w = np.array([5.0, 6], np.float32)"),
    (lambda s: s.w.__iadd__(1) is s.w and float(s.w[0]), "s.w[0] = 50"),
    (lambda s: s.words["a"], "s.words['a'] = 5"),
    (lambda s: s.count["a"] + s.count["zz"], "s.count.update('aaz')"),
    (lambda s: s.row[0], "s.row[0] = 5"),
    (lambda s: len(s.name.upper()), "s.name = Name('abcd')"),
    (lambda s: s.number, "s.number = Count(7)"),
    (lambda s: s.held.v, "s.held._v = 5"),
    (lambda s: operator.attrgetter("held._v")(s), "s.held._v = 5"),
    (lambda s: operator.itemgetter("a")(s.words), "s.words['a'] = 5"),
    (lambda s: len(s.raw) + bool(s.raw), "s.raw.append(1)"),
    (lambda s: s.array[0], "s.array[0] = 9"),
    (lambda s: s.proxy["a"] + len(s.proxy), "s.base['a'] = 4"),
    (lambda s: s.proxy.get("a") + ("b" in s.proxy), "s.base['b'] = s.base['a'] = 4"),
    (lambda s: 1 if "b" in s.keys else 2, "s.base['b'] = 4"),
    (lambda s: sum(v for _, v in s.items), "s.base['a'] = 4"),
    (lambda s: len(s.keys | {"x"}), "s.base['b'] = 4"),
    (lambda s: 1 if "b" in s.keys else 2, "s.keys = {'b': 1}.keys()"),
]


@pytest.mark.parametrize("number", range(len(READS)))
@pytest.mark.filterwarnings("ignore")
def test_read_anew(number: int) -> None:
    read, change = READS[number]

    def results(compile_it: bool) -> list[Tensor]:
        s = state()
        f = flashover.compile(lambda a: a * read(s), backend="eager") if compile_it else lambda a: a * read(s)
        out = [f(torch.ones(4)), f(torch.ones(4))]
        exec(change, globals(), {"s": s})
        return [*out, f(torch.ones(4)), f(torch.ones(4))]

    assert [t.tolist() for t in results(True)] == [t.tolist() for t in results(False)]
