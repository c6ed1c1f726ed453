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
@pytest.mark.parametrize("offsets", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
def test_bags_of_two_types_of_ints(index: torch.dtype, offsets: torch.dtype, mode: str) -> None:
    """ATen brings both to the wider."""
    at, starts = torch.tensor([3, 1, 1, 1, 4, 0], dtype=index), torch.tensor([0, 0, 3, 3, 6], dtype=offsets)
    fast = flashover.compile(lambda t, i, o: F.embedding_bag(i, t, o, mode=mode))
    table = torch.randn(5, 2, requires_grad=True)
    got, want = fast(table, at, starts), F.embedding_bag(at, table, starts, mode=mode)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), table), torch.autograd.grad(want.sum(), table))
    assert fast.stats().eager_calls == 0


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


# A table that is read and used otherwise too: gradients that are sums of rows and of other things.
SUMS: dict[str, Any] = {
    "last layer": lambda t, i, x: F.embedding(i, t).tanh() @ t.t(),
    "padding": lambda t, i, x: F.embedding(i, t, padding_idx=1).tanh() @ t.t(),
    "pointwise": lambda t, i, x: torch.cat([F.embedding(i, t).flatten(), (t * t.sin()).flatten()]),
    "two looks": lambda t, i, x: (F.embedding(i, t).tanh() + F.embedding(i.flip(0), t, padding_idx=1)) @ t.t(),
    "three looks": lambda t, i, x: (F.embedding(i, t).tanh() + F.embedding(i[:1], t) * F.embedding(i[1:2], t)) @ t.t(),
    "rows last": lambda t, i, x: F.embedding(i, t).sum(0) * (x @ t.t()).softmax(-1).amax(-1, keepdim=True),
    "itself": lambda t, i, x: torch.cat([F.embedding(i, t).flatten(), t.flatten()]),
    "transposed": lambda t, i, x: F.embedding(i, t.t()[:3].t()).tanh() @ t.t()[:3],
}


@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("kind", SUMS)
def test_sums(kind: str, index: torch.dtype) -> None:
    for rows, count in ((3, 50), (2000, 50), (300, 1000)):
        torch.manual_seed(0)
        table, at, x = torch.randn(rows, 40), torch.randint(0, rows, (count,)).to(index), torch.randn(12, 40)
        check(lambda t, i, x: SUMS[kind](t, i, x.to(t.dtype)), table, at, x)


@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize(("rows", "width", "count"), [(5, 7, 40), (3000, 64, 900), (40, 1, 0)])
def test_added_rows_are_those_of_a_table(index: torch.dtype, rows: int, width: int, count: int) -> None:
    torch.manual_seed(0)
    at, grad = torch.randint(0, rows, (count,)).to(index), torch.randn(count, width)
    for table in (torch.randn(rows, width), torch.randn(width, rows).t()):
        before = table.clone()
        want = table + torch.ops.aten.embedding_dense_backward(grad, at, rows, 2, False)
        assert torch.equal(torch.ops.flashover.add_rows(table, grad, at, 2), want) and torch.equal(table, before)
    table = before.contiguous()
    assert torch.ops.flashover.add_rows_(table, grad, at, 2) is table and torch.equal(table, want)
