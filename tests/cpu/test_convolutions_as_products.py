"""Convolutions that are products over rows of what each result reads, in bf16 training: of patches that do not overlap,
and of few points."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_features import HAS, split_f32
from torch import nn

import flashover
from flashover import _C


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
    "few points": (nn.Conv2d(512, 128, 3, padding=1), (2, 512, 4, 5)),
    "few points, strided": (nn.Conv2d(512, 128, 3, 2, 1, bias=False), (2, 512, 7, 5)),
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


# batch, channels, size, out, kernel, stride, padding, dilation
UNFOLDED: list[tuple[Any, ...]] = [
    (2, 40, (9, 8), 70, (3, 3), (2, 2), (1, 1), (2, 2)),
    (3, 64, (8, 8), 64, (5, 5), (1, 1), (2, 2), (1, 1)),
    (1, 7, (5, 11), 9, (1, 8), (1, 3), (0, 7), (1, 1)),
    (2, 200, (6, 6), 33, (2, 2), (1, 1), (0, 0), (1, 1)),
]


@pytest.mark.skipif(not HAS[torch.bfloat16], reason="no AMX here")
@pytest.mark.parametrize("case", UNFOLDED, ids=str)
def test_unfolded(case: Any) -> None:
    batch, channels, size, out, kernel, *geometry = case
    torch.manual_seed(0)
    x = torch.randn(batch, channels, *size).bfloat16().to(memory_format=torch.channels_last)
    weight, bias = torch.randn(out, channels, *kernel).bfloat16(), torch.randn(out).bfloat16()
    wide = [x.double().requires_grad_(), weight.double().requires_grad_()]
    want = nn.functional.conv2d(*wide, bias.double(), *geometry)
    grad = torch.randn(want.shape).bfloat16().to(memory_format=torch.channels_last)
    own = torch.ops.flashover
    found = [
        (own.unfolded_convolution(x, weight, bias, *geometry), want),
        *zip(
            (
                own.unfolded_input_gradient(grad, weight, x.shape, *geometry),
                own.unfolded_weight_gradient(grad, x, weight.shape, *geometry),
            ),
            torch.autograd.grad(want, wide, grad.double()),
            strict=True,
        ),
    ]
    for got, exact in found:
        assert got.shape == exact.shape and got.dtype == torch.bfloat16
        assert (got - exact).norm() <= 4e-3 * exact.norm()


@pytest.mark.skipif(bool(_C.missing_feature("avx2")), reason="no AVX2 here")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", UNFOLDED, ids=str)
def test_unfolded_f32(case: Any, threads: int) -> None:
    batch, channels, size, out, kernel, *geometry = case
    torch.manual_seed(0)
    x = torch.randn(batch, channels, *size).to(memory_format=torch.channels_last)
    weight, bias = torch.randn(out, channels, *kernel), torch.randn(out)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        got = torch.ops.flashover.unfolded_convolution(x, weight, bias, *geometry)
    finally:
        torch.set_num_threads(before)
    exact = nn.functional.conv2d(x.double(), weight.double(), bias.double(), *geometry)
    assert got.shape == exact.shape and got.is_contiguous(memory_format=torch.channels_last)
    assert (got - exact).norm() <= 5e-7 * exact.norm()
    for wrong in (x.contiguous(), x.double()):
        with pytest.raises(RuntimeError, match="unfolded convolution"):
            torch.ops.flashover.unfolded_convolution(wrong, weight, bias, *geometry)


@pytest.mark.skipif(bool(_C.missing_feature("avx2")), reason="no AVX2 here")
@pytest.mark.parametrize("dynamic", [False, True])
def test_large_weights_of_few_points_are_not_copied(dynamic: bool, tmp_path: Path) -> None:
    """Nor do batch norms behind them go into the weights."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(512, 256, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(),
        nn.Conv2d(256, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(),
        nn.Conv2d(128, 300, 3, stride=2, dilation=2), nn.Conv2d(300, 70, 1), nn.Flatten(),
    ]  # fmt: skip
    model = nn.Sequential(*layers).eval()
    for norm in (model[1], model[4]):
        norm.running_mean.uniform_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.data.uniform_(0.5, 2)
    x = torch.randn(1, 512, 7, 7)
    with torch.no_grad():
        options = split_f32(tmp_path, False)
        graph = flashover.explain(model, dynamic=False, options=options)(x).text("split_frozen")
        if "flashover.product" not in graph:
            pytest.skip("the libraries are quicker here")
        assert not any("opaque" in line or "f32[256,512" in line for line in graph.splitlines() if "frozen" in line)
        fast = flashover.compile(model, dynamic=dynamic, fullgraph=True, options=options)
        exact = model.double()
        for batch in (1, 2, 3):
            inputs = torch.randn(batch, 512, 7, 7)
            want = exact(inputs.double())
            model.float()
            error = (fast(inputs) - want).norm() / want.norm()
            assert error <= 1e-6
            exact = model.double()
        model.float()


def test_an_image_that_is_returned_too_is_read_as_the_operator_wants_it() -> None:
    """As a detector's levels are: the caller gets eager's layout, the convolution behind channels last."""

    class Levels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(24, 64, 1), nn.Conv2d(64, 128, 3, 2, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            first = nn.functional.silu(self.first(x))
            return first, self.second(first)

    torch.manual_seed(0)
    model, x = Levels().eval(), torch.randn(1, 24, 8, 8)
    with torch.no_grad():
        report = flashover.explain(model, fullgraph=True)(x)
        assert not report.eager, report.eager
        got, want = flashover.compile(model, fullgraph=True)(x), model(x)
    for g, w in zip(got, want, strict=True):
        assert g.stride() == w.stride()
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)
