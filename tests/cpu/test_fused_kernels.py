"""What lies together in one kernel: rows chosen by data, reshapes, joins, sizes that share one, signs of zeros."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import captured_whole

import flashover


def test_row_chosen_by_data_beside_its_layer_norm() -> None:
    def f(x: torch.Tensor, ids: torch.Tensor) -> Any:
        h = F.layer_norm(x, (32,))
        return h, h[torch.arange(h.shape[0]), (ids == 2).int().argmax(-1)]

    captured_whole(f, torch.randn(1, 16, 32), torch.arange(16)[None] % 5)


def test_many_reshapes_of_a_mean() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.reshape(2, 2, 2, 2, 2, 2, 2, 4).permute(0, 3, 1, 5, 2, 4, 6, 7).reshape(2, 4, 4, 4, 4)
        return y.reshape(2, 2, 2, 2, 2, 4, 4).permute(0, 2, 1, 4, 3, 5, 6).mean(-1).reshape(-1)

    captured_whole(f, torch.randn(512))


def test_constants_joined_by_cat() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        at = torch.cat([torch.arange(4)[:, None], torch.arange(4)[:, None]], 1)
        return x[:4, :2] * at

    captured_whole(f, torch.randn(4, 4))


def test_kernels_shared_between_sizes() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        return [torch.cat([t[:, i:], t[:, :i]], 1) * 2 for t in (a, b) for i in (1, 3)]

    captured_whole(f, torch.randn(4, 8), torch.randn(6, 10))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_signs_of_zeros(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both = torch.stack([x, -x], 1)
        return x.clamp(0, 1), x.clamp(max=0), F.relu6(x), both.amax(1), both.amin(1), x / 3, x.cummax(0)[0]

    x = torch.tensor([-0.0, 0.0, -0.5, 0.5, 2.0] * 9, dtype=dtype)
    for ours, theirs in zip(flashover.compile(program)(x), program(x), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert torch.equal(ours.signbit(), theirs.signbit())
