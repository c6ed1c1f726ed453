"""torch.export (strict and not) and torch.compile(fullgraph=True) go through compiled modules, functions and
methods."""

# limit: 300
import torch
from torch import nn

import flashover


class Outer(nn.Module):
    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1


x = torch.randn(2, 4)
linear = nn.Linear(4, 4)


def function(x: torch.Tensor) -> torch.Tensor:
    return x.relu() * 2


for inner in (linear, function, nn.ReLU().forward):
    c = flashover.compile(inner)
    want = Outer(inner)(x)
    for outer in (Outer(c), *([c] if isinstance(c, nn.Module) else [])):
        want = outer(x)
        torch._dynamo.reset()
        assert torch.allclose(torch.compile(outer, backend="eager", fullgraph=True)(x), want)
        for strict in (True, False):
            exported = torch.export.export(outer, (x,), strict=strict)
            assert torch.allclose(exported.module()(x), want)
            if isinstance(c, nn.Module):
                assert sorted(exported.state_dict) == sorted(outer.state_dict())
