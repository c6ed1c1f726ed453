"""Operators that act run as often, in the order and with the values as in eager (fuzz_effects.py, fixed seeds)."""

from __future__ import annotations

import pytest
from fuzz_effects import run_one

import flashover


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_what_is_called_is_what_eager_calls(first: int) -> None:
    for seed in range(first, first + 20):
        problem = run_one(seed, flashover.compile)
        flashover.reset()
        assert not problem, f"seed {seed}: {problem}"
