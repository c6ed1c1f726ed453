"""Finds a graph break, reads what it is, mends it, and sees that it is gone."""

from __future__ import annotations

import torch

import flashover


def step(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x) * 2
    if y.sum() > 0:
        y = y + 1
    return y.softmax(-1)


def mended(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x) * 2
    y = torch.where(y.sum() > 0, y + 1, y)
    return y.softmax(-1)


x = torch.randn(64, 128)
print(flashover.explain(step)(x))  # names the line and what helps
try:
    flashover.compile(step, fullgraph=True)(x)
except flashover.exc.Unsupported as error:
    print(f"\n{error.title}, at {error.where}: {error.hints[0]}")
report = flashover.explain(mended)(x)
assert len(report.graphs) == 1 and not report.breaks
torch.testing.assert_close(flashover.compile(mended, fullgraph=True)(x), step(x))
print("\nmended:", report)
