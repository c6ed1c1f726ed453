# open: docs/limits.md
"""Gradients of a compiled model arrive one by one in the course of its backward, so that reducing them overlaps with
computing the next ones."""

import time

import torch
from torch import nn

import flashover

torch.set_num_threads(1)
arrived = []
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])
for p in model.parameters():
    p.register_post_accumulate_grad_hook(lambda p: arrived.append(time.perf_counter()))
compiled = flashover.compile(model)
x = torch.randn(512, 512, requires_grad=True)
for _ in range(2):
    arrived.clear()
    loss = compiled(x).sum()
    start = time.perf_counter()
    loss.backward()
    end = time.perf_counter()
assert (arrived[0] - start) / (end - start) < 0.5
