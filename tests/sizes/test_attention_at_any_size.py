"""Attention with masks of every origin, batch 1 included: one compile. ATen asks of a mask whether its sizes are 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from cpu_features import HAS

import flashover


def attend(x: torch.Tensor, mask: torch.Tensor | None = None, **how: object) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x * 2, x + 1, attn_mask=mask, **how)


MASKED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "none": lambda x, m: attend(x),
    "causal": lambda x, m: attend(x, is_causal=True),
    "ones, expanded": lambda x, m: attend(x, torch.ones(1, 1, 7, 7, dtype=torch.bool).expand(x.shape[0], 1, 7, 7)),
    "ones of the batch": lambda x, m: attend(x, torch.ones(x.shape[0], 7, dtype=torch.bool)[:, None, None, :]),
    "numbers": lambda x, m: attend(x, m[:, None, None, :]),
    "of each row": lambda x, m: attend(x, (m > -1)[:, None, None, :].expand(x.shape[0], 1, 7, 7)),
    "of each head": lambda x, m: attend(x, (m > -1)[:, None, None, :].expand(x.shape[0], 4, 7, 7)),
}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", MASKED)
def test_a_batch_of_any_size(name: str, trained: bool) -> None:
    f = MASKED[name]
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for n in (5, 2, 1, 9):
        x, m = torch.randn(n, 4, 7, 16, requires_grad=trained), torch.randn(n, 7)
        for t in (x, m):
            torch._dynamo.mark_dynamic(t, 0, min=1)
        wide = x.detach().double().requires_grad_(trained)
        got, want = compiled(x, m), f(wide, m.double())
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
        assert got.stride() == f(x, m).stride()
        if trained:
            got.square().sum().backward()
            want.square().sum().backward()
            torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-3, atol=1e-3)
    assert flashover.compile_stats()["graphs"] - before == 1


def written(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q * 0.5, k.transpose(-1, -2)) / 3
    for m in mask:
        scores = scores + m
    return torch.matmul(torch.softmax(scores, -1), v)


@pytest.mark.parametrize("masked", [False, True])
def test_written_attention_is_one_operator_for_all_lengths(masked: bool) -> None:
    """Its head count and width are numbers; no keys at all give zeros."""
    compiled = flashover.compile(written, fullgraph=True)
    calls_before = flashover.compile_stats()["extern_calls"]
    for i, (batch, queries, keys) in enumerate(((2, 32, 48), (3, 17, 100), (4, 128, 33), (2, 3, 2), (5, 16, 1600))):
        args = [torch.randn(batch, 4, n, 16) for n in (queries, keys, keys)]
        if masked:
            args.append(torch.randn(batch, 1, queries, keys))
        got, want = compiled(*args), written(*(t.double() for t in args))
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
        assert got.stride() == written(*args).stride()
        if i == 1:
            before = flashover.compile_stats()["graphs"]
    assert flashover.compile_stats()["graphs"] == before
    if torch.get_default_device().type == "cpu":  # (on a GPU it is kernels and the library's products)
        each = 1 if HAS[torch.float32] else 2  # without AVX-512 its two products are the library's
        assert flashover.compile_stats()["extern_calls"] - calls_before == 2 * each
    for batch, queries, keys in ((2, 5, 0), (2, 0, 5), (0, 3, 3), (1, 1, 1), (2, 7, 1)):
        args = [torch.randn(batch, 4, n, 16) for n in (queries, keys, keys)]
        if masked:
            args.append(torch.randn(batch, 1, queries, keys))
        torch.testing.assert_close(compiled(*args), written(*args), rtol=1e-4, atol=1e-4)
