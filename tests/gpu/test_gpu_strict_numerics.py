"""The option strict_numerics on a GPU: results and gradients are eager's to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from strict_net import Net

import flashover

pytestmark = pytest.mark.gpu
STRICT = {"strict_numerics": True}
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    model = Net().cuda().to(dtype)
    x = torch.randn(6, 3, 12, 12, device="cuda", dtype=dtype)

    def step(f: Any) -> list[torch.Tensor]:
        model.zero_grad()
        y = f(x)
        torch.nn.functional.nll_loss(y, torch.arange(6, device="cuda") % 5).backward()
        return [y, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    # In f32 eager's batch norm would be cuDNN's, and the captured one is ATen's (docs/user/numerics.md).
    with torch.backends.cudnn.flags(enabled=dtype != torch.float32):
        wanted = step(model)
        for a, b in zip(step(flashover.compile(model, options=STRICT)), wanted, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_chain(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2 + 1) / 3.0 - 0.1).relu() * x + x.exp().sum(-1, keepdim=True)

    x = torch.randn(37, 65, device="cuda", dtype=dtype)
    with torch.no_grad():
        assert torch.equal(flashover.compile(f, options=STRICT)(x), f(x))
