"""GELU written out by formulas becomes the operator: same values, and the linear before it computes it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import flashover

Formula = Callable[[torch.Tensor], torch.Tensor]


def tanh_formula(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def tanh_reversed(x: torch.Tensor) -> torch.Tensor:
    return (torch.tanh((0.044715 * x.pow(3) + x) * 0.7978845608) + 1) * (x * 0.5)


def erf_formula(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def rough_constant(x: torch.Tensor) -> torch.Tensor:
    """Another function: 0.79 is not sqrt(2 / pi)."""
    return 0.5 * x * (1.0 + torch.tanh(0.79 * (x + 0.044715 * torch.pow(x, 3.0))))


FORMULAS = [tanh_formula, tanh_reversed, erf_formula, rough_constant]


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("autocast", [False, True])
def test_values(formula: Formula, autocast: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(96, 64)
    x = torch.randn(40, 96) * 3
    x[2, 3] = float("nan")

    def program(x: torch.Tensor) -> torch.Tensor:
        return formula(model(x))

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        got, eager = flashover.compile(program, fullgraph=True)(x), program(x)
    model.double()
    want = program(x.double())
    assert got.dtype == eager.dtype and torch.equal(got.isnan(), eager.isnan())
    error, allowed = ((t - want).abs().nan_to_num().max() for t in (got, eager))
    assert error <= 2 * allowed + (1e-2 if autocast else 2e-6)


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.__name__)
def test_special_numbers(formula: Formula) -> None:
    x = torch.tensor([0.0, -0.0, float("nan"), 1e-40, -1e-40, 100.0, -100.0, 1e20, -1e20])
    with torch.no_grad():
        got, eager = flashover.compile(formula, fullgraph=True)(x), formula(x)
    torch.testing.assert_close(got, eager, equal_nan=True, rtol=1e-6, atol=1e-7)
