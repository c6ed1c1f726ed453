"""torch.export goes through a compiled module as through the original, and checkpoints have the original's names."""

from __future__ import annotations

import torch

import flashover

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).eval()
fast = flashover.compile(model)
x = torch.randn(4, 8)
with torch.no_grad():
    expected = fast(x)
    exported = torch.export.export(fast, (x,))
    torch.testing.assert_close(exported.module()(x), expected)
assert list(fast.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
print(exported.graph_module.code)
