"""Pooling windows of hundreds of places. Each place stood in the kernel's body: the compiler took minutes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import flashover

# kernel, stride, padding, ceil_mode
WINDOWS = [
    (7, 7, 0, False), (24, 24, 0, False), (24, 24, 0, True), (16, 8, 0, False), (24, 12, 5, False), (13, 1, 6, False),
    (40, 40, 0, False), (40, 20, 0, False), ((3, 30), (3, 30), 0, False), ((2, 33), (1, 33), (1, 0), False),
]  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_pools(window: tuple, dynamic: bool) -> None:
    kernel, stride, padding, ceil = window
    compiled = flashover.compile(
        lambda x: (
            F.max_pool2d(x.cos(), kernel, stride, padding, 1, ceil),
            F.avg_pool2d(x, kernel, stride, padding, ceil),
        ),
        dynamic=dynamic,
    )
    for n in (80, 97):
        x = torch.randn(2, 3, n, n)
        x[0, 0, 5, 5], x[1, 1, 2, 2] = float("nan"), float("-inf")
        wide = x.double()
        most, mean = compiled(x)
        torch.testing.assert_close(most, F.max_pool2d(x.cos(), kernel, stride, padding, 1, ceil), equal_nan=True)
        want = F.avg_pool2d(wide, kernel, stride, padding, ceil)
        torch.testing.assert_close(mean.double(), want, rtol=1e-4, atol=1e-5, equal_nan=True)
    text = flashover.explain(compiled)(torch.randn(2, 3, 80, 80)).text()
    assert max(kernel.count(" load ") for kernel in text.split('kernel "')) < 200
