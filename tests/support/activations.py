"""What operators of ours compute on the way out, by the names that they take; and numbers that are special to it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "hardswish": F.hardswish,
}
SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e30, -1e30, 1e-40, -5.0, 5.0, 90.0, -90.0]
