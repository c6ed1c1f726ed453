"""flashover.packed_linear: bf16 products on the AMX unit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_attention import HAS

import flashover

pytestmark = pytest.mark.skipif(not HAS[torch.bfloat16], reason="no AMX here")
ACTIVATIONS = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}
SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e30, -1e30, 1e-40, -5.0, 5.0, 90.0, -90.0]


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
        assert "flashover.packed_linear" in str(flashover.explain(program)(x))
