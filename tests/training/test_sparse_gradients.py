"""Embeddings whose gradients are sparse tensors run eager, and what is around them is compiled."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import flashover


class Embedded(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8, sparse=sparse)
        self.bag = nn.EmbeddingBag(50, 8, sparse=sparse, mode="sum")
        self.head = nn.Linear(16, 4)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.words(i).mean(1).relu(), self.bag(i)], -1)).tanh()


def test_the_rest_is_compiled() -> None:
    model = Embedded(sparse=True)
    twin = copy.deepcopy(model)
    fast = flashover.compile(twin)
    for seed in range(3):
        i = torch.randint(0, 50, (6, 3), generator=torch.Generator().manual_seed(seed))
        got, want = fast(i), model(i)
        torch.testing.assert_close(got, want)
        got.sum().backward(), want.sum().backward()
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert p.grad.layout == q.grad.layout, name
        torch.testing.assert_close(q.grad.to_dense(), p.grad.to_dense())
    found = flashover.explain(fast)(i)
    assert "nothing runs eager" in str(found) and len(found.graphs) == 3


def test_without_gradients_nothing_breaks() -> None:
    fast = flashover.compile(Embedded(sparse=True), fullgraph=True)
    with torch.no_grad():
        fast(torch.zeros(2, 3, dtype=torch.int64))


def test_gather() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.gather(x, 0, i, sparse_grad=True).sin()

    x, i = torch.randn(5, 3, requires_grad=True), torch.randint(0, 5, (2, 3))
    grads = [torch.autograd.grad(g(x, i).sum(), x)[0] for g in (f, flashover.compile(f))]
    assert grads[1].layout == torch.sparse_coo
    torch.testing.assert_close(grads[1].to_dense(), grads[0].to_dense())
    with pytest.raises(flashover.exc.Unsupported, match="sparse"):
        flashover.compile(f, fullgraph=True)(x, i)
