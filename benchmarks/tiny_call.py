"""Where the microseconds of a tiny call go on a GPU: the whole call, its pieces, and what nobody can avoid.

python benchmarks/tiny_call.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import flashover
from flashover import _C


def least(call: Callable[[], Any], cuda: bool) -> float:
    """Microseconds, the least of many rounds of 100 calls in a row."""
    best = 1e9
    for _ in range(60):
        start = time.perf_counter()
        for _ in range(100):
            call()
        best = min(best, (time.perf_counter() - start) * 1e4)
        if cuda:
            torch.cuda.synchronize()
    return best


def tiny(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + 1) * 2


def main() -> None:
    torch.set_grad_enabled(False)
    times = {}
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        cuda = device == "cuda"
        x = torch.randn(16, device=device)
        fast = flashover.compile(tiny)
        fast(x)
        nothing = flashover.compile(lambda x: x)
        nothing(x)
        times[f"compiled, {device}"] = least(lambda fast=fast, x=x: fast(x), cuda)
        if cuda:
            for name, how in (
                ("no graph", {"options": {"kernel_graphs": False}}),
                ("r-o", {"mode": "reduce-overhead"}),
            ):
                other = flashover.compile(tiny, **how)
                for _ in range(5):
                    other(x)
                times[f"compiled {name}, {device}"] = least(lambda fast=other, x=x: fast(x), cuda)
        times[f"nothing to run, {device}"] = least(lambda fast=nothing, x=x: fast(x), cuda)
        times[f"torch.empty, {device}"] = least(lambda d=device: torch.empty(16, device=d), cuda)
        times[f"one operator, {device}"] = least(lambda x=x: torch.relu(x), cuda)
        times[f"eager, {device}"] = least(lambda x=x: tiny(x), cuda)
    print("; ".join(f"{k} {v:.2f}" for k, v in times.items()), "us")
    if torch.cuda.is_available():
        print("; ".join(f"{k} {v:.2f}" for k, v in _C.launch_costs(torch.cuda.current_device())), "us")


if __name__ == "__main__":
    main()
