"""Fixed programs of fuzz_locks.py."""

from __future__ import annotations

import fuzz_locks
import pytest


@pytest.mark.parametrize("seed", range(40))
def test_program(seed: int) -> None:
    assert fuzz_locks.run(seed) is None
