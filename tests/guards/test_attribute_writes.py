"""Attributes that are written between calls, in every way: 3.13 keeps them in the objects, beside their dicts' tags."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flashover


class Settings:
    def __init__(self) -> None:
        self.scale, self.shift = 2, 1


def assign(o: Settings, v: int) -> None:
    o.scale = v


def specialized(o: Settings, v: int) -> None:
    for i in range(100):
        o.scale = i
    o.scale = v


def replace_dict(o: Settings, v: int) -> None:
    o.__dict__ = {"scale": v, "shift": 1}


WAYS = {
    "assign": assign,
    "specialized": specialized,
    "setattr": lambda o, v: setattr(o, "scale", v),
    "object": lambda o, v: object.__setattr__(o, "scale", v),
    "dict": lambda o, v: o.__dict__.__setitem__("scale", v),
    "update": lambda o, v: vars(o).update(scale=v),
    "replace": replace_dict,
}


@pytest.mark.parametrize("ways", [[w] * 3 for w in WAYS] + [list(WAYS), list(reversed(WAYS))], ids=" ".join)
def test_a_write_is_seen(ways: list[str]) -> None:
    settings = Settings()

    def f(x: torch.Tensor) -> Any:
        return x * settings.scale + settings.shift

    fast, x = flashover.compile(f), torch.ones(3)
    for value, way in enumerate(ways, 5):
        for _ in range(4):  # the fast guards are armed by calls
            assert torch.equal(fast(x), f(x))
        WAYS[way](settings, value)
        assert torch.equal(fast(x), f(x)), way


def test_objects_look_as_they_did() -> None:
    settings, empty = Settings(), Settings()
    vars(empty).clear()

    def f(x: torch.Tensor) -> Any:
        return x * settings.scale + len(vars(empty))

    fast, x = flashover.compile(f), torch.ones(3)
    for _ in range(4):
        fast(x)
    assert list(vars(settings).items()) == [("scale", 2), ("shift", 1)] and vars(empty) == {}
    settings.more = 1  # type: ignore[attr-defined]
    assert list(vars(settings)) == ["scale", "shift", "more"]
    empty.scale = 7
    assert torch.equal(fast(x), f(x))
    del settings.shift
    assert list(vars(settings)) == ["scale", "more"]
