"""Kernels over size symbols, made once and run at several sizes in Triton's interpreter, against eager."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton_interpreter import interpret

pytest.importorskip("triton")

HERE = Path(__file__).resolve().parent
PARTS = 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
def test_one_plan_is_right_at_every_size(part: int) -> None:
    results = interpret(HERE / "triton_sized.py", "--part", str(part), str(PARTS))
    assert len(results) > 70
    wrong = {name: what for name, what in results.items() if what}
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())
