"""How calls use the threads of the OpenMP runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

THREADS_MADE = """
import os
import torch
import flashover

torch.set_num_threads(6)

class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 256), torch.nn.Linear(256, 8)

    def forward(self, x, rows):
        y = torch.softmax(self.first(x).relu(), -1)          # much work
        z = torch.cumsum(rows.sin(), 0) * rows.exp()         # some
        return torch.nn.functional.layer_norm(self.last(y), (8,)).sum(0) * z.sum(), z

def one_call(x, rows):
    loss = sum(t.square().mean() for t in compiled(x, rows))
    loss.backward()

compiled = flashover.compile(Mixed())
inputs = [(torch.randn(n, 64), torch.randn(3 * n, 7, requires_grad=True)) for n in (512, 40, 300, 150, 4000)]
for _ in range(3):
    for args in inputs:
        one_call(*args)
seen = set(os.listdir("/proc/self/task"))
made = 0
for _ in range(10):
    for args in inputs:
        one_call(*args)
        now = set(os.listdir("/proc/self/task"))
        made += len(now - seen)
        seen |= now
assert made < 10, f"{made} threads were made in 50 calls"
"""


def test_calls_make_no_threads() -> None:
    """libgomp ends threads where a team is smaller than the last one, and makes new ones for the next."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS_MADE],
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-2000:]
