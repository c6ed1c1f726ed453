"""A slice of fuzz_inserted.py: the language programs with graph breaks between their statements."""

from __future__ import annotations

import fuzz_inserted
import pytest


@pytest.mark.timeout(170)
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_inserted_breaks(first: int) -> None:
    for seed in range(first, first + 20):
        wrong = fuzz_inserted.check(seed)
        assert not wrong, wrong
