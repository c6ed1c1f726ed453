"""What tests of training start from: a compiled function whose stages are verified, a leaf that requires grad."""

from __future__ import annotations

from typing import Any

import torch

import flashover


def compiled(f: Any, fullgraph: bool = True, **options: Any) -> Any:
    return flashover.compile(f, fullgraph=fullgraph, options={"verify": True, **options})


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes).requires_grad_()
