"""Convolutions whose patches do not overlap, in bf16 training: products over the rows of patches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import flashover


def point(stride: int) -> nn.Module:
    """With column sums of large images around it, which have holes in their gradient."""
    return nn.Sequential(
        nn.Conv2d(32, 128, 1, bias=False), nn.BatchNorm2d(128, affine=True), nn.ReLU(), nn.Conv2d(128, 64, 1, stride)
    )


PROGRAMS = {
    "patches": (nn.Conv2d(3, 64, 16, 16), (2, 3, 64, 64)),
    "cropped": (nn.Conv2d(3, 24, 4, 4, bias=False), (2, 3, 66, 67)),
    "channels": (nn.Conv2d(32, 48, 2, 2), (2, 32, 15, 14)),
    "oblong": (nn.Conv2d(16, 32, (2, 4), (2, 4)), (2, 16, 9, 17)),
    "points": (nn.Conv2d(32, 64, 1, 2, bias=False), (2, 32, 15, 14)),
    "far points": (nn.Conv2d(32, 64, 1, 3), (2, 32, 16, 14)),
    "batch norm": (point(2), (2, 32, 32, 31)),
    "transposed": (nn.ConvTranspose2d(32, 16, 2, 2), (2, 32, 9, 8)),
    "transposed, no bias": (nn.ConvTranspose2d(32, 3, 3, 3, bias=False), (2, 32, 9, 8)),
    "overlapping": (nn.Conv2d(16, 32, 3, 2), (2, 16, 15, 15)),
    "groups": (nn.Conv2d(16, 32, 2, 2, groups=2), (2, 16, 15, 15)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    model, shape = copy.deepcopy(PROGRAMS[name])
    torch.manual_seed(0)
    x = torch.randn(shape)

    def gradients(model: nn.Module, call: Any, x: torch.Tensor, autocast: bool) -> list[torch.Tensor]:
        x = x.detach().clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = call(x)
        weight = torch.linspace(-1, 1, out.numel(), dtype=torch.double).to(out.dtype).view_as(out)
        return [out, *torch.autograd.grad((out * weight).sum(), [x, *model.parameters()])]

    wide = copy.deepcopy(model).double()
    want = gradients(wide, wide, x.double(), False)
    eager = gradients(model, model, x, True)
    got = gradients(model, flashover.compile(model, fullgraph=True), x, True)
    for g, e, w in zip(got, eager, want, strict=True):
        assert g.shape == e.shape and g.dtype == e.dtype and g.stride() == e.stride()
        assert (g - w).norm() <= 2 * (e - w).norm() + 1e-5 * w.norm()
