"""A slice of fuzz_written_objects.py: what is written to old objects while ints change is what eager writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fuzz_written_objects as fuzz
import pytest

import flashover


@pytest.mark.parametrize("first", range(0, 160, 20))
def test_writes_are_eagers(first: int) -> None:
    for seed in range(first, first + 20):
        problem = fuzz.check(seed)
        flashover.reset()
        assert not problem, f"seed {seed}: {problem}"


def test_the_comparison_sees_other_writes() -> None:
    def with_another_int(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, n, objects: f(x, n + 4, objects)  # the same place, another value

    seen = sum(bool(fuzz.check(seed, with_another_int)) for seed in range(40))
    assert seen > 30
