"""Levels of a pyramid that have one row or column for small images are served by the version for larger ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from comparing import differ
from torch import Tensor, nn

import flashover

IMAGES = [(16, 16), (8, 8), (8, 24), (24, 7), (5, 6), (40, 33), (9, 8), (8, 9), (6, 40)]


def pooled(x: Tensor) -> list[Tensor]:
    levels = [x]
    for _ in range(3):
        levels.append(F.max_pool2d(levels[-1].relu(), 2, ceil_mode=True))
    return levels


def flattened(x: Tensor) -> Tensor:
    rows = [level.permute(0, 2, 3, 1).reshape(level.shape[0], -1, level.shape[1]) for level in pooled(x)]
    return torch.cat(rows, 1).softmax(1)


def up_again(x: Tensor) -> Tensor:
    levels = pooled(x)
    y = levels[-1]
    for level in reversed(levels[:-1]):
        y = F.interpolate(y, size=level.shape[-2:], mode="nearest") + level
    return y


def by_itself(x: Tensor) -> Tensor:
    """Where one row is another case for the program."""
    last = pooled(x)[-1]
    return last * 2 if last.shape[2] == 1 else last.sum(2, keepdim=True)


def squeezed(x: Tensor) -> Tensor:
    """Where one row is another type of result."""
    return pooled(x)[-1].squeeze(2).sin()


# With how many graphs at most: one for the first size, one for all, and one more where a level has one row that had
# several in the call which that was made for.
PROGRAMS: dict[str, tuple[Callable[[Tensor], object], int]] = {
    "levels": (pooled, 4),
    "flattened": (flattened, 4),
    "up again": (up_again, 4),
    "by itself": (by_itself, 6),
    "squeezed": (squeezed, len(IMAGES)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_row_or_column(name: str) -> None:
    f, most = PROGRAMS[name]
    for first in (0, 1, 2):
        flashover.reset()
        compiled = flashover.compile(f, options={"remember_sizes": False})
        before = flashover.compile_stats()
        for height, width in IMAGES[first:] + IMAGES[:first]:
            x = torch.randn(2, 3, height, width)
            assert (wrong := differ(compiled(x), f(x), rtol=1e-5, atol=1e-5)) == "", f"{height} x {width}: {wrong}"
        after = flashover.compile_stats()
        assert after["graphs"] - before["graphs"] <= most
        assert after["eager_calls"] == before["eager_calls"]


def test_convolutions_and_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.GELU(), nn.Conv2d(8, 4, 3, 2, 1)
    )
    flashover.reset()
    compiled = flashover.compile(model, options={"remember_sizes": False})
    before = flashover.compile_stats()["graphs"]
    for height, width in IMAGES:
        x = torch.randn(2, 3, height, width)
        results = []
        for f in (compiled, model):
            given = x.clone().requires_grad_()
            y = f(given)
            results.append([y.detach(), *torch.autograd.grad(y.square().sum(), [given, *model.parameters()])])
        assert (wrong := differ(*results, rtol=1e-4, atol=1e-4)) == "", f"{height} x {width}: {wrong}"
    assert flashover.compile_stats()["graphs"] - before <= 3
