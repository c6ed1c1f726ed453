"""Functional collectives in compiled functions, on two processes: results are filled while the program goes on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch, torch.distributed as dist, flashover
from torch.distributed import _functional_collectives as collectives
rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
group = dist.group.WORLD

def reduced(x):
    y = collectives.all_reduce(x * 2, "sum", group)
    return y + 1

def gathered(x):
    y = collectives.all_gather_tensor(x.sin(), 0, group)
    return y * 2, x.cos()

def much_between(x):
    y = collectives.all_reduce(x + 1, "sum", group)
    z = x
    for _ in range(8):
        z = (z @ z.t()).softmax(-1)
    return y + z, z.sum()

def one_behind_another(x):
    for _ in range(4):
        x = collectives.all_reduce(x.tanh(), "sum", group) / 2
    return x

def turned(x):
    return collectives.all_reduce(x.t(), "sum", group).t() + x

for program in (reduced, gathered, much_between, one_behind_another, turned):
    fast = flashover.compile(program)
    for size in (3, 3, 64, 700):
        torch.manual_seed(size)
        x = torch.randn(2, size, size)[rank]
        for got, want in zip(*(v if isinstance(v, tuple) else (v,) for v in (fast(x), program(x))), strict=True):
            torch.testing.assert_close(torch.as_tensor(got) + 0, want + 0, rtol=1e-4, atol=1e-4)
dist.barrier()
print("right")
"""


@pytest.mark.timeout(120)
def test_collectives_on_two_processes() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), port],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            out, error = process.communicate(timeout=100)
            assert out.strip().endswith("right"), error[-3000:]
    finally:
        for process in processes:
            process.kill()
