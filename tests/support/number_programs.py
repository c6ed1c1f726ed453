"""Programs that read numbers from tensors, which the CPU's tests and the GPU's run."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def written_behind(x: Tensor) -> Any:
    total = x.sum()
    first = total.item()
    total.add_(1)
    return first, total.item(), total * first
