"""What symbols for sizes cost when compiling: seconds of the first call less a steady one, a process each.

    python benchmarks/cold_with_symbols.py [--only bert] [--device cuda] [--repeats 3] [--with-torch] [--cpu-time]

The workloads are those of sized_workloads.py at their largest size, and torchvision's image models. "static" compiles
for that size, "symbols" with dynamic=True; the least of `--repeats` processes counts, each with empty caches.
`--cpu-time`: of the process and the compilers that it runs, for machines that do other work meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import models as bench
import torch
import torchvision
from dynamic import call_of, own_copy, seconds
from sized_workloads import WORKLOADS

import flashover

IMAGES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "resnet50": (lambda: torchvision.models.resnet50(), (3, 3, 160, 192)),
    "mobilenet_v3_small": (lambda: torchvision.models.mobilenet_v3_small(), (3, 3, 160, 192)),
    "densenet121": (lambda: torchvision.models.densenet121(), (3, 3, 160, 192)),
    "convnext_tiny": (lambda: torchvision.models.convnext_tiny(), (3, 3, 160, 192)),
    "swin_v2_t": (lambda: torchvision.models.swin_v2_t(), (2, 3, 288, 320)),
    "fcn_resnet50": (
        lambda: torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None),
        (2, 3, 160, 192),
    ),
}
NAMES = [*WORKLOADS, *IMAGES]


def made(name: str) -> tuple[torch.nn.Module, tuple[Any, ...], bool]:
    torch.manual_seed(0)
    if name in IMAGES:
        make, shape = IMAGES[name]
        return make().eval(), (torch.rand(shape),), False
    workload = WORKLOADS[name]
    return workload.make(), workload.inputs(workload.sizes[1]), workload.training


def processor_seconds(call: Callable[[], Any]) -> float:
    before = os.times()
    call()
    return sum(os.times()[:4]) - sum(before[:4])


def cold(name: str, way: str, device: str, cpu_time: bool) -> float:
    warnings.simplefilter("ignore")
    model, args, training = made(name)
    model, args = model.to(device), own_copy(args, device)
    call_of(model, args, training)()
    dynamic = way.endswith("symbols")
    if way.startswith("torch"):
        fast = torch.compile(model, dynamic=dynamic)
    else:
        fast = flashover.compile(model, dynamic=dynamic, options={"remember_sizes": False})
    call = call_of(fast, args, training)

    def spent() -> float:
        return processor_seconds(call) if cpu_time else seconds(call, device)

    first = spent()
    call()
    return first - spent()


def least(name: str, way: str, options: argparse.Namespace) -> float:
    cores = sorted(os.sched_getaffinity(0))
    times = []
    for _ in range(options.repeats if way[:5] != "torch" else 1):
        with bench.empty_caches(cores) as environment:
            arguments = ["--row", json.dumps([name, way]), "--device", options.device]
            arguments += ["--cpu-time"] * options.cpu_time
            try:
                times.append(float(bench.child(__file__, arguments, environment, cores, 600)))
            except RuntimeError as failure:  # a row that fails is a result, and the others must go on
                print(name, way, failure, file=sys.stderr, flush=True)
    return min(times, default=float("nan"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", default="", help="workloads that have this in their names")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--with-torch", action="store_true", help="torch.compile, too, once")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(cold(*json.loads(options.row), options.device, options.cpu_time)))
        return
    ways = ["static", "symbols", *["torch static", "torch symbols"] * options.with_torch]
    print("| workload | " + " | ".join(ways) + " | symbols / static |" + " torch's |" * options.with_torch)
    print("|---" * (len(ways) + 2 + options.with_torch) + "|")
    ratios: dict[str, list[float]] = {}
    for name in NAMES:
        if options.only not in name:
            continue
        t = {way: least(name, way, options) for way in ways}
        cells = [f"{t[way]:.2f} s" for way in ways]
        for plain, symbols in (("static", "symbols"), ("torch static", "torch symbols")):
            if plain in t:
                ratios.setdefault(plain, []).append(t[symbols] / t[plain])
                cells.append(f"{t[symbols] / t[plain]:.2f}x")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    means = " | ".join(f"{bench.geomean(v):.2f}x" for v in ratios.values())
    print("| geometric mean |" + " |" * len(ways) + f" {means} |")


if __name__ == "__main__":
    main()
