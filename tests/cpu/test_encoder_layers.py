"""Transformer layers and attention modules in inference: one operator each in eager, which is taken apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import flashover

KEYS = torch.tensor([[False, False, True], [False, True, True]])
CAUSAL = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)
MASKS = {
    "none": {},
    "keys": {"src_key_padding_mask": KEYS},
    "scores": {"src_mask": CAUSAL},
    "both": {"src_mask": CAUSAL, "src_key_padding_mask": KEYS},
    "float": {"src_mask": torch.zeros(3, 3).masked_fill(CAUSAL, float("-inf"))},
}
TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-9, 1e-10), torch.bfloat16: (5e-2, 5e-2)}


def layer(**options: object) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    made = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options).eval()  # type: ignore[arg-type]
    for p in made.parameters():
        nn.init.normal_(p, std=0.3)
    return made


@torch.no_grad()
def check(f: nn.Module, *args: Tensor, dtype: torch.dtype = torch.float32, **kwargs: object) -> None:
    want, got = f(*args, **kwargs), flashover.compile(f, fullgraph=True)(*args, **kwargs)
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_layer(mask: str, norm_first: bool, activation: str) -> None:
    check(layer(norm_first=norm_first, activation=activation), torch.randn(2, 3, 16), **MASKS[mask])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_dtypes(dtype: torch.dtype) -> None:
    check(layer().to(dtype), torch.randn(2, 3, 16).to(dtype), dtype=dtype)
    check(layer().to(dtype), torch.randn(2, 3, 16).to(dtype), dtype=dtype, src_key_padding_mask=KEYS)


@pytest.mark.parametrize("options", [{}, {"need_weights": False}, {"average_attn_weights": False}])
@pytest.mark.parametrize("mask", [{}, {"key_padding_mask": KEYS}, {"attn_mask": CAUSAL}])
def test_attention(options: dict[str, bool], mask: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 16)
    check(attention, x, x, x, **options, **mask)


def test_attention_of_three_tensors() -> None:
    """By hand: nn.MultiheadAttention takes this way for one tensor alone."""
    torch.manual_seed(0)
    m = nn.MultiheadAttention(16, 2, batch_first=True).eval().requires_grad_(False)
    weights = (m.in_proj_weight, m.in_proj_bias, m.out_proj.weight, m.out_proj.bias)

    def f(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return torch._native_multi_head_attention(q, k, v, 16, 2, *weights)  # type: ignore[arg-type]

    q, k, v = torch.randn(3, 2, 5, 16).unbind()
    compiled = flashover.compile(f, fullgraph=True)
    for args in ((q, k, v), (q, k, k), (q, q, q)):
        torch.testing.assert_close(compiled(*args), f(*args), rtol=1e-4, atol=1e-5)


def test_rows_without_a_key_are_nan() -> None:
    everything = torch.tensor([[False, False, True], [True, True, True]])
    check(layer(), torch.randn(2, 3, 16), src_key_padding_mask=everything)


def test_sizes_that_change() -> None:
    encoder = nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False).eval()
    before = flashover.compile_stats()["graphs"]
    compiled = flashover.compile(encoder, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for batch, length in ((2, 3), (3, 7), (5, 2), (2, 33)):
            x = torch.randn(batch, length, 16)
            torch.testing.assert_close(compiled(x), encoder(x), rtol=1e-4, atol=1e-5)
    assert flashover.compile_stats()["graphs"] == before + 1


@torch.no_grad()
def test_it_is_taken_apart_unless_bits_are_eagers() -> None:
    f, x = layer(), torch.randn(2, 3, 16)
    text = flashover.explain(f)(x).plan
    assert "aten._transformer_encoder_layer_fwd" not in text
    strict = flashover.compile(f, options={"strict_numerics": True})
    assert torch.equal(strict(x), f(x))


@torch.no_grad()
def test_wrong_sizes_raise_as_in_eager() -> None:
    f, x = layer(), torch.randn(2, 3, 16)
    f.linear2.weight = nn.Parameter(torch.randn(16, 31))
    with pytest.raises(RuntimeError):
        f(x)
    with pytest.raises(RuntimeError):
        flashover.compile(f)(x)
