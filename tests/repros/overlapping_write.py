"""A write that reads, on its way, what it wrote is captured whole."""

# open: docs/limits.md
import torch

import flashover


def shift(x: torch.Tensor) -> torch.Tensor:
    x[:, 1:] = x[:, :-1]
    return x


x, y = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(3, 4)
assert torch.equal(flashover.compile(shift, fullgraph=True)(x), shift(y))
