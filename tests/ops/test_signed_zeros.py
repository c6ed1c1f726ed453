"""A zero keeps its sign through kernels, where eager keeps it: what it divides tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import flashover

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "neg": torch.neg,
    "by a negative number": lambda x: x / -1.0,
    "by a small negative number": lambda x: x / -3e-5,
    "by a negative number that changes": lambda x: x / x.flatten()[-1],
    "times a negative number": lambda x: x * -2.0,
    "plus zero": lambda x: x + -0.0,
    "by negative zero": lambda x: x / -0.0,
    "filled": lambda x: torch.full_like(x, -0.0),
    "tanh": torch.tanh,
    "expm1": torch.expm1,
    "erf": torch.erf,
    "sqrt": torch.sqrt,
    "round": torch.round,
    "trunc": torch.trunc,
    "where": lambda x: torch.where(x > 1, x, -0.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_as_eager(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 0.3, -0.3, 2.5, -2.5] * 5 + [-2.0], dtype=dtype)  # not whole vectors
    got, wanted = flashover.compile(FUNCTIONS[name], fullgraph=True)(x), FUNCTIONS[name](x)
    torch.testing.assert_close(got, wanted, equal_nan=True)
    zero = (wanted == 0).nonzero().flatten()
    assert torch.equal(got[zero].signbit(), wanted[zero].signbit())
