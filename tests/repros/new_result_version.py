"""A result that was written after it was made has eager's version."""

# open: docs/limits.md
import torch

import flashover


def f(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return y.add_(1)


x = torch.randn(4)
got, want = flashover.compile(f)(x)._version, f(x)._version
assert got == want, f"version {got}, not {want}"
