"""Training in bf16 with autocast: the model and its loss are compiled, the loop stays as it is."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import flashover

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 128), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(128, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
inputs = torch.randn(512, 20)
targets = inputs[:, :3].argmax(-1)


@flashover.compile(fullgraph=True)
def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.cross_entropy(model(x).float(), y)


losses = []
for _ in range(60):
    optimizer.zero_grad()
    loss = loss_of(inputs, targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {flashover.live(loss_of).stats().recompiles} recompilations")
assert losses[-1] < losses[0] / 2
