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


class MadeInTheFirstCall(nn.modules.lazy.LazyModuleMixin, nn.Module):
    """Has no uninitialized parameter: its hook makes one."""

    def initialize_parameters(self, xs):
        with torch.no_grad():
            self.scale = nn.Parameter(torch.empty(xs[0].shape).fill_(0.5))

    def forward(self, xs):
        return xs[0] * self.scale


def test_parameters_that_the_first_call_makes():
    model = nn.Sequential(MadeInTheFirstCall())
    fast = flashover.compile(model, fullgraph=True)
    x = [torch.randn(3)]
    torch.testing.assert_close(fast(x), x[0] * 0.5)
    torch.testing.assert_close(fast(x), x[0] * 0.5)
    assert len(flashover.live(fast).versions) == 1


def test_a_module_without_a_hash():
    class Unhashable(nn.Module):
        __hash__ = None

        def forward(self, x):
            return x + 1

    x = torch.randn(3)
    torch.testing.assert_close(flashover.compile(nn.Sequential(Unhashable()), fullgraph=True)(x), x + 1)
