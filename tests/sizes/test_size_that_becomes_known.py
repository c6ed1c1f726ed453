"""A size that the answers of a version leave one value for: what is asked of it is still checked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import flashover


def rows_of_four(x: Tensor) -> Tensor:
    return x.view(x.shape[0] // 4, 4, 6) * 2


def one_window(x: Tensor) -> Tensor:
    return torch.roll(x.view(1, x.shape[1] // 4, 4, 6), 1, 1)


@pytest.mark.parametrize("sizes", [(20, 28, 4, 44), (4, 20, 28), (20, 28, 44, 8, 4)])
def test_a_view_of_one_part_after_views_of_more(sizes: tuple[int, ...]) -> None:
    first = flashover.compile(rows_of_four, fullgraph=True)
    second = flashover.compile(one_window, fullgraph=True)
    for n in sizes:
        x = torch.randn(n, 6)
        assert torch.equal(first(x), rows_of_four(x)), n
        assert first(x).stride() == rows_of_four(x).stride(), n
        x = x[None]
        assert torch.equal(second(x), one_window(x)), n
