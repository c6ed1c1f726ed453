"""flashover.packed_linear: bf16 products on the AMX unit, and f32 ones through the bf16x3 split."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from activations import ACTIVATIONS, SPECIAL
from cpu_features import HAS, split_f32
from torch import nn

import flashover

pytestmark = pytest.mark.skipif(not HAS[torch.bfloat16], reason="no AMX here")


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 33, 5), (17, 64, 32), (33, 70, 45), (50, 500, 100), (450, 900, 130)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_operator(shape: tuple[int, int, int], activation: str) -> None:
    rows, inner, columns = shape
    torch.manual_seed(0)
    x = torch.randn(rows, inner + 3).bfloat16()[:, :inner]
    w, b = torch.randn(columns, inner).bfloat16(), torch.randn(columns).bfloat16()
    for weight, bias in ((w, b), (w.t().contiguous().t(), None)):
        packed = torch.ops.flashover.pack_linear(weight)
        got = torch.ops.flashover.packed_linear(x, packed, bias, columns, activation)
        want = ACTIVATIONS[activation](F.linear(x.double(), weight.double(), None if bias is None else bias.double()))
        assert got.shape == want.shape
        torch.testing.assert_close(got.double(), want, rtol=5e-3, atol=1e-3)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_special_numbers(activation: str) -> None:
    """Each result is one input: 0 and 1 are all of the weight, the bias is no number in one column."""
    x = torch.zeros(len(SPECIAL), 32).bfloat16()
    x[:, 0] = torch.tensor(SPECIAL)
    w = torch.zeros(3, 32).bfloat16()
    w[:, 0] = 1
    b = torch.tensor([0.0, float("nan"), float("inf")]).bfloat16()
    got = torch.ops.flashover.packed_linear(x, torch.ops.flashover.pack_linear(w), b, 3, activation)
    want = ACTIVATIONS[activation](F.linear(x.float(), w.float(), b.float()))
    if activation == "gelu":  # ATen's own kernels differ at infinity
        got, want = got[want.isfinite()], want[want.isfinite()]
    torch.testing.assert_close(got.float(), want, rtol=5e-3, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "sigmoid"])
def test_program(activation: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(96, 60)
    x = torch.randn(2, 20, 96)
    x[1, 3, 5] = float("nan")

    def program(x: torch.Tensor) -> torch.Tensor:
        return ACTIVATIONS[activation](model(x))

    fast = flashover.compile(program, fullgraph=True)
    for _ in range(2):  # each in an autocast of its own: eager keeps casts of weights as long as it lasts
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            got, eager = fast(x), program(x)
            assert got.dtype == eager.dtype and torch.equal(got.isnan(), eager.isnan())
            torch.testing.assert_close(got, eager, rtol=2e-2, atol=2e-2, equal_nan=True)
            model.weight.mul_(-2)  # the packed copy must follow
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert "flashover.packed_linear" in flashover.explain(program)(x).text()


SHAPES = [(1, 1, 1), (1, 33, 5), (17, 64, 32), (33, 70, 45), (50, 800, 100), (300, 1700, 130)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_f32_operator(shape: tuple[int, int, int], activation: str) -> None:
    """As exact as f32 arithmetic: rms errors against eager's own."""
    rows, inner, columns = shape
    torch.manual_seed(0)
    x = torch.randn(rows, inner + 3)[:, :inner]
    w, b = torch.randn(columns, inner), torch.randn(columns)
    for weight, bias in ((w, b), (w.t().contiguous().t(), None)):
        packed = torch.ops.flashover.pack_linear(weight)
        got = torch.ops.flashover.packed_linear(x, packed, bias, columns, activation)
        eager = ACTIVATIONS[activation](F.linear(x, weight, bias))
        want = ACTIVATIONS[activation](F.linear(x.double(), weight.double(), None if bias is None else bias.double()))
        assert got.shape == want.shape and got.dtype == torch.float32
        error, floor = (got - want).square().mean().sqrt(), 3e-7 + 2e-7 * want.square().mean().sqrt()
        assert error <= (eager - want).square().mean().sqrt() + floor
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5 * math.sqrt(inner))


@pytest.mark.parametrize("inner", [40, 1000])
def test_f32_every_size(inner: int) -> None:
    """Rows and columns that three bf16 numbers cannot hold are multiplied in f32 arithmetic, and the others are not
    touched by them."""
    torch.manual_seed(0)
    x, w, b = torch.randn(37, inner), torch.randn(70, inner), torch.zeros(70)
    for row, scale in ((3, 1e-38), (5, 1e-42), (7, 1e30), (9, 1e36), (11, 0.0), (13, 1e-15)):
        x[row] *= scale
    x[17, 1], x[19, 2], x[36, 3] = float("nan"), float("inf"), -float("inf")
    packed = torch.ops.flashover.pack_linear(w)
    got = torch.ops.flashover.packed_linear(x, packed, b, 70, "none")
    want = F.linear(x, w)
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
    exact = F.linear(x.double(), w.double())
    for row in (r for r in range(37) if bool(exact[r].isfinite().all()) and bool(want[r].isfinite().all())):
        size = float(exact[row].square().mean().sqrt())
        assert float((got[row] - exact[row]).abs().max()) <= 3e-6 * size + 1e-44 * inner, row
    for column, value in ((2, 1e33), (33, float("inf")), (35, float("nan")), (40, 1e-40)):
        w[column, 5:] = value
    got = torch.ops.flashover.packed_linear(x, torch.ops.flashover.pack_linear(w), b, 70, "none")
    want = F.linear(x, w)
    ordinary = [0, 1, 2, 4, 6, 8, 14, 15, 16, 18, 20, 35]
    torch.testing.assert_close(got[ordinary], want[ordinary], rtol=2e-5, atol=2e-4, equal_nan=True)
    w[40, :5] = 0
    got = torch.ops.flashover.packed_linear(x, torch.ops.flashover.pack_linear(w), b, 70, "none")
    tiny = F.linear(x[ordinary].double(), w[40].double()[None])[:, 0]
    torch.testing.assert_close(got[ordinary, 40].double(), tiny, rtol=1e-3, atol=1e-43 * inner)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_f32_program(activation: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(200, 160)
    x = torch.randn(2, 20, 200)

    def program(x: torch.Tensor) -> torch.Tensor:
        return ACTIVATIONS[activation](model(x))

    options = split_f32(tmp_path, True)
    fast = flashover.compile(program, fullgraph=True, options=options)
    with torch.no_grad():
        for value in (1.0, float("nan"), 1e-44):
            x[1, 3, 5] = value
            torch.testing.assert_close(fast(x), program(x), rtol=1e-5, atol=1e-5, equal_nan=True)
            model.weight.mul_(-2)  # the packed copy must follow
        model.weight.data = torch.randn(160, 200)
        x[1, 3, 5] = 1
        torch.testing.assert_close(fast(x), program(x), rtol=1e-5, atol=1e-4)
        assert "flashover.packed_linear" in flashover.explain(program, options=options)(x).text()


class StridedBiases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(64, 32)), nn.Parameter(torch.randn(128))
        self.kernel = nn.Parameter(torch.randn(64, 32, 3, 3))

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> list[torch.Tensor]:
        every, one = self.bias[::2], self.bias[:1].expand(64)
        out = [F.linear(x, self.weight, b) for b in (every, one)]
        out += [F.relu(F.conv2d(image, self.kernel, b)) for b in (every, one)]
        return [*out, F.conv2d(image, self.kernel[..., :1, :1], every)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_biases_that_do_not_lie_side_by_side(dtype: torch.dtype) -> None:
    # oneDNN's operators read such a bias as if it were dense.
    net, x, image = StridedBiases().to(dtype), torch.randn(256, 32, dtype=dtype), torch.randn(1, 32, 9, 9, dtype=dtype)
    with torch.no_grad():
        torch.testing.assert_close(flashover.compile(net)(x, image), net(x, image), atol=0.1, rtol=0.02)


def test_a_known_matrix_times_a_transposed_gradient() -> None:
    # The first step's hidden state is known to be zeros: packed, and multiplied with the transposed gradient.
    net, x = nn.GRU(128, 128, batch_first=True), torch.randn(16, 4, 128)

    def step(call: object) -> list[torch.Tensor]:
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out, hidden = call(x)
        (out.float().square().sum() + hidden.float().sum()).backward()
        return [p.grad.clone() for p in net.parameters()]

    torch.testing.assert_close(step(flashover.compile(net)), step(net), atol=0.5, rtol=0.05)
