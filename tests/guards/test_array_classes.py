"""What a program reads of arrays of classes of numpy's and its own is what they are in this call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import flashover


class Grid(np.ndarray):
    pass


MAKERS: dict[str, Callable[[tuple[int, int]], Any]] = {
    "masked": lambda size: np.ma.masked_array(np.full(size, size[1] + 0.5)),
    "own": lambda size: np.full(size, size[1] + 0.5).view(Grid),
    "matrix": lambda size: np.asmatrix(np.full(size, size[1] + 0.5)),
}

READS: dict[str, Callable[[Any], Any]] = {
    "shape": lambda a: a.shape[1],
    "length": lambda a: len(a),
    "strides": lambda a: a.strides[0],
    "flags": lambda a: 1 if a.flags.c_contiguous else 2,
    "transposed": lambda a: a.T.shape[0],
    "item": lambda a: float(a[0, 0]),
    "sum": lambda a: float(a.sum()),
    "truth": lambda a: 1 if (a > 3).any() else 2,
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("read", READS)
def test_another_array_in_each_call(kind: str, read: str) -> None:
    def f(array: Any, x: torch.Tensor) -> torch.Tensor:
        return x * READS[read](array)

    compiled, x = flashover.compile(f), torch.ones(3)
    for size in [(7, 3), (7, 2), (5, 2), (5, 4)]:
        for array in (MAKERS[kind](size), MAKERS[kind](size[::-1]).T):
            assert torch.equal(compiled(array, x), f(array, x)), size


@pytest.mark.parametrize("kind", MAKERS)
def test_an_attribute(kind: str) -> None:
    class Holder(torch.nn.Module):
        table: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.table.shape[1] + float(self.table[0, 0])

    module, x = Holder(), torch.ones(3)
    compiled = flashover.compile(module)
    for size in [(7, 3), (7, 2), (5, 4)]:
        module.table = MAKERS[kind](size)
        assert torch.equal(compiled(x), module.forward(x)), size
        module.table[0, 0] = 11
        assert torch.equal(compiled(x), module.forward(x)), "written in place"


def test_masked_medians() -> None:
    """numpy's own code meets arrays of several shapes behind a break."""

    def f(a: np.ndarray) -> tuple[Any, Any, Any]:
        masked = np.ma.masked_invalid(a)
        return np.nanmedian(a, 1), np.ma.median(masked, axis=1), (masked[:, :3].sum(), masked[:, :2].sum())

    a = np.random.default_rng(0).random((7, 5))
    a[a < 0.3] = np.nan
    a[:, 0] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got, expected = flashover.compile(f)(a), f(a)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.ma.filled(g, -1), np.ma.filled(e, -1), rtol=1e-12)
