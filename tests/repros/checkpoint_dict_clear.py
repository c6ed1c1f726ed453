"""A checkpointed forward that clears an empty dict (peft's DoRA does) is one graph, as it is without the checkpoint."""

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

import flashover


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)
        self.cache = {}

    def forward(self, x):
        self.cache.clear()
        return torch.relu(self.l(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for b in self.b:
            x = checkpoint(b, x, use_reentrant=False)
        return x.sum()


model = Model()
c = flashover.compile(model)
before = flashover.compile_stats()
for _ in range(3):
    x = torch.randn(2, 8)
    want = torch.autograd.grad(model(x), list(model.parameters()))
    got = torch.autograd.grad(c(x), list(model.parameters()))
    torch.testing.assert_close(got, want)
made = {k: v - before[k] for k, v in flashover.compile_stats().items() if k in before}
assert made["graphs"] == 1 and made["graph_breaks"] == 0 and made["recompiles"] == 0, made
# What is in the dict when a call begins is cleared by it.
model.b[1].cache["k"] = 1
c(torch.randn(2, 8))
assert model.b[1].cache == {}
