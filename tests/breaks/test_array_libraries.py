"""A function of numpy that cannot be captured is one step of the program: its own Python code is not compiled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import flashover


def singular_values(x: Tensor) -> Tensor:
    return torch.from_numpy(np.linalg.svd(x.numpy())[1]) * 2


def percentiles(x: Tensor) -> Tensor:
    return torch.tensor(np.percentile(x.numpy(), [10, 50, 90])) + 1


def histogram(x: Tensor) -> Tensor:
    return torch.from_numpy(np.histogram(x.numpy(), bins=8)[0]) + x.sum()


def blocks(x: Tensor) -> Tensor:
    array = x.numpy()
    return torch.from_numpy(np.block([[array, array], [array, array]])) + 1


@pytest.mark.parametrize("f", [singular_values, percentiles, histogram, blocks])
def test_one_break(f: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(8, 10)
    explanation = flashover.explain(f)(x)
    assert len(explanation.breaks) == 1 and len(explanation.graphs) <= 2
    compiled = flashover.compile(f)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), f(x))


def test_what_numpy_calls_back_is_compiled() -> None:
    def centred(row: np.ndarray) -> np.ndarray:
        return row - row.mean()

    def f(x: Tensor) -> Tensor:
        return torch.from_numpy(np.apply_along_axis(centred, 1, x.numpy())) * 2

    x = torch.randn(8, 10)
    compiled = flashover.compile(f)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), f(x))
