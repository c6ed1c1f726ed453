"""f32 on a machine with an AMX unit: by its bf16x3 split where the machine's probe finds it the quicker one, else as on
machines without the unit."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from cpu_features import HAS, split_f32
from torch import Tensor, nn

import flashover

pytestmark = pytest.mark.skipif(not HAS[torch.bfloat16], reason="no AMX here")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(32, 64, 3), nn.Conv2d(64, 64, 3, 2), nn.Linear(64, 256)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x).relu()).flatten(2).transpose(1, 2)
        return self.last(y).relu()


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_training(split: bool, dynamic: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 32, 30, 30)
    options = split_f32(tmp_path, split)
    fast = flashover.compile(model, dynamic=dynamic, options=options)
    wide = copy.deepcopy(model).double()
    found = []
    for f, of, at in ((fast, model, x), (model, model, x), (wide, wide, x.double())):
        out = f(at)
        found.append([out.detach(), *torch.autograd.grad(out.square().mean(), list(of.parameters()))])
    for got, eager, best in zip(*found, strict=True):
        assert float((got - best).norm()) <= 2 * float((eager - best).norm()) + 1e-6 * float(best.norm())
    text = flashover.explain(model, dynamic=dynamic, options=options)(x.clone().requires_grad_()).text()
    assert ("flashover.convolution" in text) == split
