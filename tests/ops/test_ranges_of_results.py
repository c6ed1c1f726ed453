"""Results keep to the range that eager's have, to the last bit: roots and logarithms of what is left are no NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.distributions import Normal

import flashover

Function = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, tuple[Function, float, float]] = {
    "sigmoid": (torch.sigmoid, 0, 1),
    "tanh": (torch.tanh, -1, 1),
    "erf": (torch.erf, -1, 1),
    "1 + tanh": (lambda x: 1 + torch.tanh(x), 0, 2),
    "1 + erf": (lambda x: 1 + torch.erf(x), 0, 2),
    "1 - a distribution": (lambda x: 1 - Normal(0.0, 1.0).cdf(x), 0, 1),
    "a factor": (lambda x: (1 + torch.erf(x)) * x.abs(), 0, math.inf),
    "a root": (lambda x: (x.abs() * (1 + torch.tanh(x))).sqrt(), 0, math.inf),
    "softmax": (lambda x: torch.softmax(torch.stack([x, -x]), 0), 0, 1),
    "logsigmoid": (torch.nn.functional.logsigmoid, -math.inf, 0),
    "exp": (lambda x: torch.exp(-x.abs()), 0, 1),
    "sin": (torch.sin, -1, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_range(name: str, dtype: torch.dtype) -> None:
    function, low, high = FUNCTIONS[name]
    x = torch.linspace(-12, 12, 200_001).to(dtype)
    result = flashover.compile(function, fullgraph=True)(x)
    assert not result.isnan().any()
    assert low <= result.min() and result.max() <= high


def test_the_tail_of_a_distribution() -> None:
    def survival(x: torch.Tensor) -> torch.Tensor:
        return (1 - Normal(0.0, 1.0).cdf(x)).log()

    x = torch.linspace(-6, 5, 20_001)
    wanted = survival(x.double())
    got, eager = ((f(x) - wanted).abs().max() for f in (flashover.compile(survival, fullgraph=True), survival))
    assert got <= 2 * eager
