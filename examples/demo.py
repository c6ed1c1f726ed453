"""Compiles a real model and shows eager next to compiled: `./x demo [model]`, any timm, torchvision or zoo name."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

import flashover

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import models
import zoo


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="resnet18")
    name = parser.parse_args().model
    model, args, kwargs = zoo.make(name)
    with torch.no_grad():
        expected = model(*args, **kwargs)
        fast = flashover.compile(model)
        start = time.perf_counter()
        got = fast(*args, **kwargs)
        print(f"{name}: first call (capture, compile, run) {time.perf_counter() - start:.2f} s")
        times: dict[str, list[float]] = {"eager": [], "flashover": []}
        for _ in range(15):
            for key, call in (("eager", model), ("flashover", fast)):
                start = time.perf_counter()
                call(*args, **kwargs)
                times[key].append(time.perf_counter() - start)
    eager, ours = (statistics.median(times[k]) * 1e3 for k in ("eager", "flashover"))
    difference = models.error(got, expected)
    print(
        f"{name}: eager {eager:.1f} ms, flashover {ours:.1f} ms ({eager / ours:.2f}x), difference to eager {difference:.1e}"
    )
    print({k: v for k, v in flashover.compile_stats().items() if v})
    return 0 if difference < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
