"""torch.fx.symbolic_trace goes through a compiled child as through an ordinary one; what was compiled is kept."""

import torch
from torch import nn

import flashover

inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
outer = nn.Sequential(flashover.compile(inner), nn.Linear(4, 2))
x = torch.randn(2, 4)
want = outer(x)
traced = torch.fx.symbolic_trace(outer)
twin = torch.fx.symbolic_trace(nn.Sequential(inner, nn.Linear(4, 2)))
assert [(n.op, n.target) for n in traced.graph.nodes] == [(n.op, n.target) for n in twin.graph.nodes]
assert torch.allclose(traced(x), want)
before = flashover.compile_stats()["frames"]
assert torch.allclose(outer(x), want)
assert flashover.compile_stats()["frames"] == before


class Function(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return twice(x) + 1


@flashover.compile
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


assert [n.op for n in torch.fx.symbolic_trace(Function()).graph.nodes].count("call_function") == 2
