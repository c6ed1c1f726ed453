"""What torch.profiler shows of a compiled call: its name, the modules, each kernel."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

import flashover

model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.GELU()).eval()
fast = flashover.compile(model)
x = torch.randn(32, 64)
with torch.no_grad():
    fast(x)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        fast(x)
names = [event.name for event in seen.events()]
print("\n".join(names))
assert "flashover: Sequential" in names and any(name.startswith("self.") for name in names)
