"""flashover.panel_linear and depthwise_last: products and depthwise convolutions in f32 by the processor's vectors."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from activations import ACTIVATIONS, SPECIAL
from cpu_features import LEVEL
from torch import nn

import flashover
from flashover import _C

pytestmark = pytest.mark.skipif(bool(_C.missing_feature("avx2")), reason="no AVX2 here")
OPS = torch.ops.flashover
# Rows around those of a tile (6, 14), columns around those of a panel (16), more than a chunk of the inner dim (512),
# rows whose distance makes them collide in the cache (a multiple of 512).
SHAPES = [
    (1, 1, 1), (1, 33, 5), (3, 0, 7), (0, 4, 5), (5, 64, 32), (6, 7, 16), (7, 513, 17), (13, 9, 15), (14, 1024, 33),
    (15, 70, 45), (29, 512, 48), (130, 40, 24), (450, 1300, 20),
]  # fmt: skip


@pytest.fixture(params=[1, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_products(shape: tuple[int, int, int], activation: str, threads: int) -> None:
    rows, inner, columns = shape
    torch.manual_seed(0)
    gap = 0 if inner % 512 == 0 else 3
    x, w = torch.randn(rows, inner + gap)[:, :inner], torch.randn(columns, inner) / max(inner, 1) ** 0.5
    bias, added = torch.randn(columns), torch.randn(rows, columns + 5)[:, :columns]
    for weight, b, a in ((w, bias, None), (w.t().contiguous().t(), None, added), (w, bias, added), (w, None, None)):
        got = OPS.panel_linear(x, OPS.pack_panels(weight), b, a, columns, activation)
        want = F.linear(x.double(), weight.double(), None if b is None else b.double())
        want = ACTIVATIONS[activation](want if a is None else want + a.double())
        torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=2e-5)


def test_a_row_does_not_depend_on_the_others() -> None:
    x, w = torch.randn(40, 700), torch.randn(50, 700)
    packed = OPS.pack_panels(w)
    all_rows = OPS.panel_linear(x, packed, None, None, 50, "gelu")
    for first, last in ((0, 1), (3, 10), (17, 40)):
        part = OPS.panel_linear(x[first:last], packed, None, None, 50, "gelu")
        assert torch.equal(part, all_rows[first:last])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("columns", [3, 16])
def test_special_numbers(activation: str, columns: int) -> None:
    """Each result is one input: 0 and 1 are all of the weight, the bias is no number in one column."""
    x = torch.zeros(len(SPECIAL), 8)
    x[:, 0] = torch.tensor(SPECIAL)
    w = torch.zeros(columns, 8)
    w[:, 0] = 1
    b = torch.zeros(columns)
    b[1], b[2] = float("nan"), float("inf")
    got = OPS.panel_linear(x, OPS.pack_panels(w), b, None, columns, activation)
    want = ACTIVATIONS[activation](F.linear(x, w, b))
    if activation == "gelu":  # ATen's own kernels differ at infinity
        got, want = got[want.isfinite()], want[want.isfinite()]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6, equal_nan=True)


def test_wrong_products_are_errors() -> None:
    x, packed = torch.randn(3, 8), OPS.pack_panels(torch.randn(5, 8))
    for wrong in (
        lambda: OPS.panel_linear(x, packed, None, None, 30, "none"),
        lambda: OPS.panel_linear(x.double(), packed, None, None, 5, "none"),
        lambda: OPS.panel_linear(x, packed, torch.randn(4), None, 5, "none"),
        lambda: OPS.panel_linear(x, packed, None, torch.randn(2, 5), 5, "none"),
        lambda: OPS.panel_linear(x, packed, None, None, 5, "unknown"),
        lambda: OPS.panel_linear.out(x, packed, None, None, 5, "none", out=torch.empty(3, 6)),
        lambda: OPS.pack_panels(torch.randn(5, 8).double()),
    ):
        with pytest.raises(RuntimeError, match="panel"):
            wrong()


def draw_convolution(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, list[list[int]]] | None:
    r = random.Random(seed)
    channels = r.choice([1, 3, 7, 8, 15, 16, 17, 31, 33, 48, 64, 65, 72, 130])
    kernel = [r.choice([1, 2, 3, 3, 5, 7]), r.choice([1, 2, 3, 3, 5, 7, 9])]
    stride, padding = [r.randint(1, 3), r.choice([1, 1, 2, 2, 3])], [r.randint(0, 4), r.randint(0, 4)]
    dilation, size = [r.randint(1, 2), r.choice([1, 1, 2])], [r.randint(1, 40), r.randint(1, 60)]
    if any(s + 2 * p < d * (k - 1) + 1 for s, p, d, k in zip(size, padding, dilation, kernel, strict=True)):
        return None
    torch.manual_seed(seed)
    x = torch.randn(r.randint(1, 3), channels, *size).to(memory_format=torch.channels_last)
    bias = torch.randn(channels) if seed % 2 else None
    return x, torch.randn(channels, 1, *kernel), bias, [stride, padding, dilation]


def test_depthwise_convolutions(threads: int) -> None:
    done = 0
    for seed in range(200):
        drawn = draw_convolution(seed)
        if drawn is None:
            continue
        x, w, b, geometry = drawn
        activation = list(ACTIVATIONS)[seed % len(ACTIVATIONS)]
        got = OPS.depthwise_last(x, OPS.pack_depthwise(w), b, list(w.shape[2:]), *geometry, activation)
        want = F.conv2d(x.double(), w.double(), None if b is None else b.double(), *geometry, groups=w.shape[0])
        torch.testing.assert_close(got.double(), ACTIVATIONS[activation](want), rtol=2e-5, atol=2e-5)
        done += 1
    assert done > 100


def test_depthwise_reads_nothing_beyond_the_image() -> None:
    """What lies between rows and behind the image is not read into results."""
    whole = torch.full((2, 20, 30, 40), float("nan")).to(memory_format=torch.channels_last)
    x = whole[:1, :17, 3:12, 5:21]
    x.copy_(torch.randn(x.shape))
    w = torch.randn(17, 1, 5, 5)
    for size in (9, 3):
        part = x[:, :, :size]
        got = OPS.depthwise_last(part, OPS.pack_depthwise(w), None, [5, 5], [1, 1], [2, 2], [1, 1], "none")
        torch.testing.assert_close(got, F.conv2d(part, w, None, 1, 2, 1, 17), rtol=1e-5, atol=1e-5)


def test_wrong_depthwise_convolutions_are_errors() -> None:
    x, packed = (
        torch.randn(1, 4, 6, 6).to(memory_format=torch.channels_last),
        OPS.pack_depthwise(torch.randn(4, 1, 3, 3)),
    )
    for args in (
        ([3, 3], [1, 1], [1], [1, 1], "none"),
        ([3, 3], [0, 1], [1, 1], [1, 1], "none"),
        ([5, 3], [1, 1], [1, 1], [1, 1], "none"),
        ([3, 3], [1, 1], [1, 1], [1, 1], "unknown"),
    ):
        with pytest.raises(RuntimeError, match="depthwise_last"):
            OPS.depthwise_last(x, packed, None, *args)
    with pytest.raises(RuntimeError, match="depthwise_last"):
        OPS.depthwise_last(x.contiguous(), packed, None, [3, 3], [1, 1], [1, 1], [1, 1], "none")


class Block(nn.Module):
    """Convolutions of one point around a depthwise one, then a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Conv2d(24, 72, 1, bias=False), nn.BatchNorm2d(72)
        self.deep = nn.Conv2d(72, 72, 5, stride=2, padding=2, groups=72)
        self.down, self.head = nn.Conv2d(72, 40, 1), nn.Linear(40, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.deep(F.hardswish(self.norm(self.up(x)))))
        return self.head(F.silu(self.down(x)).mean((2, 3)))


def test_a_program(threads: int) -> None:
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(2, 24, 19, 21)
    x[1, 3, 2, 2] = float("nan")  # relu and hardswish keep it
    fast = flashover.compile(model, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5, equal_nan=True)
            model.up.weight.mul_(-1)  # the packed copies must follow
            model.deep.weight.add_(0.1)
        if _C.missing_feature("amx_bf16"):
            text = flashover.explain(model)(x).text()
            assert "flashover.depthwise_last" in text and "flashover.panel_linear" in text


def test_any_size() -> None:
    torch.manual_seed(0)
    model = Block().eval()
    fast = flashover.compile(model, dynamic=True)
    with torch.no_grad():
        for batch, height, width in ((2, 19, 21), (3, 8, 40), (5, 33, 7), (4, 64, 64)):
            x = torch.randn(batch, 24, height, width)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert flashover.live(fast).stats().graphs <= 2


@pytest.mark.skipif(LEVEL != "avx512" or "FLASHOVER_ISA" in os.environ, reason="the above runs as on one")
def test_a_machine_with_avx2() -> None:
    """All of the above."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env=os.environ | {"FLASHOVER_ISA": "avx2"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
