"""Modules whose parameters get their sizes in the first call: that call runs as written, the next one is compiled."""

import pytest
import torch
from torch import nn

import flashover


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyBatchNorm1d())
        self.head = nn.LazyConv1d(3, 1)

    def forward(self, x):
        return self.head(self.inner(x)[..., None])


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("make", [Lazy, lambda: nn.LazyLinear(3), lambda: nn.Sequential(nn.LazyLinear(3))])
def test_lazy_modules(make, fullgraph):
    torch.manual_seed(0)
    model = make().eval()
    fast = flashover.compile(model, fullgraph=fullgraph)
    x = torch.randn(4, 5)
    first = fast(x)
    assert not flashover.live(fast).versions
    torch.testing.assert_close(fast(x), first)
    fast(x).sum().backward()
    assert len(flashover.live(fast).versions) == 1
    assert not flashover.live(fast).explain().breaks
    assert all(p.grad is not None for p in model.parameters())
