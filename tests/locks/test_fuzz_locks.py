"""Fixed programs of fuzz_locks.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
import fuzz_locks


@pytest.mark.parametrize("seed", range(40))
def test_program(seed: int) -> None:
    assert fuzz_locks.run(seed) is None
