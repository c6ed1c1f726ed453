"""DistributedDataParallel around a compiled model; here with one process (torchrun starts more)."""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist

import flashover

with tempfile.TemporaryDirectory() as folder:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    how = "env://" if "MASTER_ADDR" in os.environ else f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=how, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    parallel = torch.nn.parallel.DistributedDataParallel(flashover.compile(model))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    x = torch.randn(64, 8)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (parallel(x) - x.sum(-1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dist.destroy_process_group()
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
assert losses[-1] < losses[0] / 2
