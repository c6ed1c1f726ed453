"""mode="max-autotune" measures the alternatives when it compiles; the choice is kept in the disk cache."""

from __future__ import annotations

import time

import torch

import flashover

model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).eval()
x = torch.randn(64, 512)
with torch.no_grad():
    expected = model(x)
    for mode in ("default", "max-autotune"):
        fast = flashover.compile(model, mode=mode)
        start = time.perf_counter()
        torch.testing.assert_close(fast(x), expected, rtol=1e-3, atol=1e-4)
        first = time.perf_counter() - start
        times = []
        for _ in range(20):
            start = time.perf_counter()
            fast(x)
            times.append(time.perf_counter() - start)
        print(f"{mode}: first call {first * 1e3:.0f} ms, then {min(times) * 1e6:.0f} us")
