"""Operators and modules whose shape functions, data or fast paths stood in the way: captured whole, equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import captured_whole, whole
from torch import nn

import flashover

X = torch.linspace(-2, 2, 2 * 8 * 16).reshape(2, 8, 16)


IDS = (torch.arange(12) * 7 % 20).reshape(3, 4)


MASK = torch.tensor([True, False] * 8)


encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).eval()


attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "one_hot": (lambda i: F.one_hot(i, 20), (IDS,)),
    "encoder fast path": (encoder, (X,)),
    "encoder with a mask": (lambda x: encoder(x, src_key_padding_mask=torch.zeros(2, 8, dtype=torch.bool)), (X,)),
    "attention fast path": (lambda x: attention(x, x, x), (X,)),
    "attention without weights": (lambda x: attention(x, x, x, need_weights=False), (X,)),
    "lstm": (nn.LSTM(16, 8, 2, bidirectional=True).eval(), (X,)),
    "gru": (nn.GRU(16, 8, batch_first=True).eval(), (X,)),
    "max_pool1d with indices": (lambda x: F.max_pool1d(x, 2, return_indices=True), (X,)),
    "embedding bag": (nn.EmbeddingBag(20, 8, mode="mean"), (IDS,)),
    "constant mask": (lambda x: x[:, :, torch.tensor([True, False] * 8)], (X,)),
    "constant mask made by operators": (lambda x: torch.combinations(x[0, 0]), (X,)),
    "stft": (
        lambda x: torch.stft(x, 16, window=torch.hann_window(16), return_complex=True).abs(),
        (X.reshape(2, 128),),
    ),
    "istft": (
        lambda x: torch.istft(
            torch.stft(x, 16, window=torch.hann_window(16), return_complex=True), 16, window=torch.hann_window(16)
        ),
        (X.reshape(2, 128),),
    ),
    "complex slices": (lambda x: torch.view_as_real(torch.fft.rfft(x)[:, 1:, ::2].transpose(0, 1) * 2), (X,)),
    "requires_grad_ that changes nothing": (lambda x: (x * 2).requires_grad_(False) + 1, (X,)),
    "batch norm in training": (lambda x: F.batch_norm(x, None, None, training=True), (X,)),
    "rrelu": (lambda x: F.rrelu(x), (X,)),
    "whether a number is among others": (
        lambda i: (torch.isin(3, i), torch.isin(99, i), torch.isin(3, i, invert=True), torch.isin(i, 3)),
        (IDS,),
    ),
    "gradient of the loss of one row": (
        lambda g, x, i: torch.ops.aten.nll_loss_backward(g, x, i, None, 0, 10, torch.tensor(1.0)),
        (X[0, 0, :1], X[0, 0, :3], torch.tensor(2)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.timeout(120)
def test_program(name: str) -> None:
    f, args = PROGRAMS[name]
    captured_whole(f, *args)


def test_operator_that_writes_and_has_no_functional_twin() -> None:
    """The running statistics move as in eager."""
    fast, eager = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
    compiled = flashover.compile(fast, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(X), eager(X))
    torch.testing.assert_close(fast.running_mean, eager.running_mean)
    torch.testing.assert_close(fast.running_var, eager.running_var)
    assert fast.num_batches_tracked == eager.num_batches_tracked == 3


def test_mask_of_data_behind_other_dimensions() -> None:
    def f(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return x[:, :, m] * 2

    with torch.no_grad():
        torch.testing.assert_close(flashover.compile(f, fullgraph=True)(X, MASK), f(X, MASK))


def test_powers_in_place() -> None:
    """pow_.Scalar had no twin (pow.Scalar is another thing): the power was lost."""

    def f(x: torch.Tensor, e: torch.Tensor) -> Any:
        a, b = x.abs() + 0.5, x.abs() + 0.5
        return a.pow_(3.0), b.pow_(e), x.abs().pow_(2)

    captured_whole(f, X[0], X[0].abs())


@pytest.mark.parametrize("shape", [(), (4,), (3, 4)])
def test_multilabel_margins_without_a_batch(shape: tuple[int, ...]) -> None:
    """The shape function said one element where there is a number."""
    x, target = torch.randn(shape), torch.zeros(shape, dtype=torch.int64)
    for reduction in ("none", "mean"):
        captured_whole(lambda x, target: F.multilabel_margin_loss(x, target, reduction=reduction), x, target)  # noqa: B023


@pytest.mark.parametrize("norm", [False, True])
def test_padded_encoder_is_zero_where_eager_is(norm: bool) -> None:
    torch.manual_seed(0)
    m = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, norm=nn.LayerNorm(16) if norm else None
    ).eval()
    s, pad = torch.rand(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    c = whole(m)
    with torch.no_grad():
        for p in (pad, pad.flip(1)):  # one that eager makes a nested tensor of, one that it does not
            got, want = c(s, src_key_padding_mask=p), m(s, src_key_padding_mask=p)
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("product", [torch.dot, torch.vdot, torch.matmul])
def test_products_of_conjugated_vectors_are_conjugated_lazily(product):
    x, y = torch.complex(X[0, 0], X[0, 1]), torch.complex(X[0, 2], X[0, 3])
    for f in (
        lambda x, y: product(x.conj(), y),
        lambda x, y: product(x, y.conj()),
        lambda x, y: product(x.conj(), y.conj()),
    ):
        got, expected = flashover.compile(f)(x, y), f(x, y)
        assert got.is_conj() == expected.is_conj()
        torch.testing.assert_close(got, expected)
        whole = flashover.compile(lambda x, y, f=f: f(x, y) * 2, fullgraph=True)
        torch.testing.assert_close(whole(x, y), expected * 2)


@pytest.mark.parametrize("draw", [torch.ops.aten.uniform, torch.ops.aten.normal_functional])
def test_what_is_drawn_in_place_of_a_tensor_has_its_strides(draw: Any) -> None:
    x = X[:, ::2].transpose(0, 2)
    got, want = flashover.compile(lambda x: draw(x, 0.0, 1.0), fullgraph=True)(x), draw(x, 0.0, 1.0)
    assert (got.shape, got.stride()) == (want.shape, want.stride())


@pytest.mark.parametrize(
    "f",
    [
        lambda t, s: t.slice_scatter(s, 1, 4, 10),
        lambda t, s: t.slice_scatter(s[:1], 0, 4, 10),
        lambda t, s: t.select_scatter(s[0], 1, 4),
    ],
)
def test_what_does_not_fill_a_part_is_eagers_error(f: Any) -> None:
    for g in (f, flashover.compile(f, fullgraph=True)):
        with pytest.raises(RuntimeError, match="expected src to have a size equal to the slice of self"):
            g(torch.zeros(16, 16), torch.ones(16, 2))
