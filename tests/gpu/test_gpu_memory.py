"""What plans take on the device beside what eager takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_tools import agree

import flashover

pytestmark = pytest.mark.gpu


def peak(call: Callable[[], Any]) -> int:
    """Bytes beside what lay there before, kept from earlier calls or not."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


class Layers(torch.nn.Module):
    """Casts in sizes that share the allocator's segments badly; a convolution that takes much itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(32, 72, 1, bias=False)
        self.grouped = torch.nn.Conv2d(72, 72, 3, stride=2, padding=1, groups=3, bias=False)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(n, 777 if n == 1536 else 1536) for n in (777, 1536) * 20)
        self.enter = torch.nn.Linear(72, 777)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.grouped(self.first(x).relu()).relu()
        z = self.enter(y.mean((2, 3)))
        for layer in self.layers:
            z = layer(z)
        return z


def test_weights_and_workspaces() -> None:
    torch.manual_seed(0)
    model = Layers().cuda()
    x = torch.randn(64, 32, 112, 112, device="cuda")
    fast = flashover.compile(model)

    def call(f: Callable[..., Any]) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            return f(x)

    call(model)  # libraries take what they keep
    eager = peak(lambda: call(model))
    want = call(model)
    agree(call(fast), want, rtol=5e-2, atol=5e-3)
    agree(call(fast), want, rtol=5e-2, atol=5e-3)
    del want
    assert peak(lambda: call(fast)) <= eager * 1.01
    # Another weight: the old casts make room for the new.
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.9)
    assert peak(lambda: call(fast)) <= eager * 1.01
    agree(call(fast), call(model), rtol=5e-2, atol=5e-3)
