"""A slice of fuzz_metamorphic.py: one program in several ways that mean the same."""

from __future__ import annotations

import fuzz_metamorphic
import pytest


@pytest.mark.timeout(170)
@pytest.mark.parametrize("first", range(0, 20, 5))
def test_metamorphic(first: int) -> None:
    for seed in range(first, first + 5):
        pairs, wrong = fuzz_metamorphic.check(seed)
        assert pairs and not wrong, wrong
