"""Where the CPU time of a training step goes on a GPU: each part's enqueueing, the whole step, the operators it calls.

python benchmarks/step_cost.py --models resnet50,t5 --operators 25
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import torch
from gpu_models import loss_of, make, optimizer

import flashover


def parts(name: str, key: str, operators: int) -> None:
    model, inputs = make(name, True, False)
    model = model.cuda()
    inputs = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
    fast = model if key == "eager" else flashover.compile(model, mode="reduce-overhead" if key == "graphs" else None)
    steps = optimizer(name, model)

    def step(least: list[float]) -> None:
        torch.cuda.synchronize()
        marks = [time.perf_counter()]
        steps.zero_grad(set_to_none=True)
        marks.append(time.perf_counter())
        with torch.autocast("cuda", torch.bfloat16):
            out = fast(**inputs)
        marks.append(time.perf_counter())
        loss_of(out).backward()
        marks.append(time.perf_counter())
        steps.step()
        marks.append(time.perf_counter())
        torch.cuda.synchronize()
        marks.append(time.perf_counter())
        times = [b - a for a, b in itertools.pairwise(marks)] + [marks[-1] - marks[0]]
        least[:] = [min(a, b) for a, b in zip(least, times, strict=True)]

    least = [1e9] * 6
    for i in range(25):
        if i == 5:
            least = [1e9] * 6
        step(least)
    names = ["zero_grad", "forward", "backward", "optimizer", "device after", "whole"]
    print(f"{name}, {key}: " + ", ".join(f"{n} {1e3 * t:.2f}" for n, t in zip(names, least, strict=True)) + " ms")
    if operators:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(3):
                step([1e9] * 6)
        events: list[Any] = sorted(profile.key_averages(), key=lambda e: -e.self_cpu_time_total)
        for e in events[:operators]:
            print(f"    {e.self_cpu_time_total / 3e3:8.3f} ms {e.count / 3:7.0f}x {e.key[:100]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="resnet50,t5")
    parser.add_argument("--keys", default="eager,default,graphs")
    parser.add_argument("--operators", type=int, default=0)
    options = parser.parse_args()
    for name in options.models.split(","):
        for key in options.keys.split(","):
            flashover.reset()
            parts(name, key, options.operators)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
