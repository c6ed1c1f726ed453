"""An optimizer's step over 200 parameters is a handful of launches: at most three."""
# open: docs/limits.md

import torch

import flashover

parameters = [torch.nn.Parameter(torch.randn(8 + i % 5, 4)) for i in range(200)]
adam = torch.optim.Adam(parameters, lr=0.01)
for p in parameters:
    p.grad = torch.randn_like(p)
adam.step()
explained = flashover.explain(adam.step)()
assert not explained.breaks
assert len(explained.kernels) <= 3, len(explained.kernels)
