"""An optimizer's step as kernels; the learning rate may change."""

from __future__ import annotations

import torch

import flashover

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)


@flashover.compile
def step() -> None:
    optimizer.step()


x, losses = torch.randn(32, 64), []
for _ in range(30):
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    step()
    schedule.step()
    losses.append(loss.item())
stats = flashover.live(step).stats()
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {stats.kernels} kernels, {stats.recompiles} recompilations")
assert losses[-1] < losses[0]
