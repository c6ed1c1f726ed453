"""Gradients of embedding tables on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import flashover


def gradient(call: Any, table: torch.Tensor, *rest: Any) -> torch.Tensor:
    leaf = table.detach().clone().requires_grad_()
    out = call(leaf, *rest)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def check(f: Any, table: torch.Tensor, *rest: Any) -> None:
    got, eager = gradient(flashover.compile(f), table, *rest), gradient(f, table, *rest)
    want = gradient(f, table.double(), *rest)
    assert got.dtype == eager.dtype and got.stride() == eager.stride()
    assert (got - want).abs().max() <= 2 * (eager - want).abs().max() + 1e-6


@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("width", [7, 64])
@pytest.mark.parametrize("rows", [5, 3000])
def test_embedding(rows: int, width: int, index: torch.dtype) -> None:
    torch.manual_seed(0)
    table, at = torch.randn(rows, width), torch.randint(0, rows, (6, 50)).to(index)
    check(lambda t, i: F.embedding(i, t), table, at)
    check(lambda t, i: F.embedding(i, t, padding_idx=3), table, at)
    check(lambda t, i: F.embedding(i, t, padding_idx=-1), table, at)
    check(lambda t, i: F.embedding(i, t, scale_grad_by_freq=True), table, at)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode: str) -> None:
    torch.manual_seed(0)
    table, at = torch.randn(400, 20), torch.randint(0, 400, (300,))
    for offsets in (torch.arange(0, 300, 4), torch.tensor([0, 0, 7, 7, 299]), torch.tensor([0])):
        for options in ({}, {"padding_idx": 5}, {"scale_grad_by_freq": mode != "max"}):

            def f(t: Any, i: Any, o: Any, options: Any = options) -> Any:
                return F.embedding_bag(i, t, o, mode=mode, **options)

            check(f, table, at, offsets)
    ends = torch.tensor([0, 100, 300])
    check(lambda t, i, o: F.embedding_bag(i, t, o, mode=mode, include_last_offset=True), table, at, ends)
    check(lambda t, i: F.embedding_bag(i, t, mode=mode), table, at.view(30, 10))
    if mode == "sum":
        weights = torch.rand(300)
        check(
            lambda t, i, o, w: F.embedding_bag(i, t, o, mode="sum", per_sample_weights=w.to(t.dtype)),
            table,
            at,
            ends[:2],
            weights,
        )
