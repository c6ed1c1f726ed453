"""One compile serves every size on CUDA."""

from __future__ import annotations

import pytest
import sized_programs
import torch
from comparing import differ
from sized_programs import PROGRAMS, SIZES

import flashover

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_serves_every_size(name: str, mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for tensor in ("W", "B", "SCALE", "SHIFT", "TABLE"):
        monkeypatch.setattr(sized_programs, tensor, getattr(sized_programs, tensor).cuda())
    f, shape = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f, dynamic=True, fullgraph=True, mode=mode)
    before = flashover.compile_stats()["graphs"]
    for n in SIZES + SIZES:
        x = torch.randn(shape(n), device="cuda")
        assert (wrong := differ(compiled(x), f(x), rtol=1e-4, atol=1e-4)) == "", f"size {n}: {wrong}"
    made = flashover.compile_stats()["graphs"] - before
    assert made == 1, f"compiled {made} times"
