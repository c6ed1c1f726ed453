# open: docs/limits.md
"""torch._dynamo.compiled_autograd with Flashover as its compiler makes one graph of a backward, without a break."""

import torch
from torch import nn
from torch._dynamo import compiled_autograd

import flashover

model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
for p in model.parameters():
    p.register_hook(lambda g: g * 2)
before = flashover.compile_stats()
with compiled_autograd._enable(flashover.compile):
    model(torch.ones(2, 4)).sum().backward()
after = flashover.compile_stats()
assert after["graphs"] - before["graphs"] == 1
assert after["graph_breaks"] == before["graph_breaks"]
