"""Graph breaks: every program gives what it gives uncompiled, and goes on compiled after the break."""

from __future__ import annotations

import copy
import io
from contextlib import redirect_stdout
from typing import Any

import break_programs
import flashover
import pytest
import torch
from break_programs import PROGRAMS


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.stride() == b.stride()
            and torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5, equal_nan=True)
        )
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float):
        return isinstance(b, float) and abs(a - b) <= 1e-4 * max(1, abs(a))
    return a == b and type(a) is type(b)


def lines_of(e: BaseException) -> list[tuple[str, int]]:
    out, tb = [], e.__traceback__
    while tb is not None:
        if "break_programs" in tb.tb_frame.f_code.co_filename:
            out.append((tb.tb_frame.f_code.co_name, tb.tb_lineno))
        tb = tb.tb_next
    return out


def outcome(f: Any, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    x, y = x.clone(), y.clone()
    break_programs.LOG.clear()
    said = io.StringIO()
    with redirect_stdout(said):
        try:
            value = ("value", copy.copy(f(x, y)))
        except Exception as e:
            value = ("raised", type(e).__name__, str(e), lines_of(e))
    return {"result": value, "said": said.getvalue(), "x": x, "y": y, "log": list(break_programs.LOG), "grad": torch.is_grad_enabled()}


def inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(4, 4, generator=g), torch.randn(4, 4, generator=g)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_same_as_eager(program: Any) -> None:
    compiled = flashover.compile(program)
    with torch.no_grad():
        for seed in (0, 1, 2, 0):
            x, y = inputs(seed)
            expected, got = outcome(program, x, y), outcome(compiled, x, y)
            assert same(expected, got), f"seed {seed}:\n{expected}\n{got}"
