"""Normalizations keep what the rounded mean leaves: held against fp64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import flashover


def batch_norm(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, training=True)


@pytest.mark.parametrize("norm", [F.instance_norm, batch_norm], ids=["instance", "batch"])
def test_near_equal_numbers(norm: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The mean of two numbers that differ in a few bits is rounded to one of their neighbours."""
    torch.manual_seed(0)
    x = (100 * torch.rand(1, 500, 1, 1)).repeat(1, 1, 1, 2) + torch.tensor([0.0, 3e-3])
    off = (flashover.compile(norm)(x).double() - norm(x.double())).abs().max().item()
    assert off < 1e-6, off  # (eager: 2e-3)


@pytest.mark.parametrize("shape", [(500, 300), (2000, 77), (70, 1000), (33, 4100)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_down_many_columns(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Large enough that blocks of rows are read together, for many columns."""

    def moments(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.var(0), x.double().sum(0), (x.double() - x.double().mean(0)).amax(0)

    x = torch.randn(shape, dtype=dtype) + 3
    for got, want in zip(flashover.compile(moments)(x), moments(x.double()), strict=True):
        assert got.shape == want.shape
        torch.testing.assert_close(got.double(), want, rtol=1e-6 if got.dtype == torch.float32 else 1e-12, atol=1e-9)
