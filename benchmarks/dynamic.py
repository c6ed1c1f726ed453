"""One compile for every size: eager, torch.compile, flashover static per size and flashover dynamic.

    python benchmarks/dynamic.py [--device cuda] [--only bert] [--sizes 6] [--threads 8] [--without-torch]

The workloads are those of sized_workloads.py. For each the sizes are drawn once. `compiles` is how many graphs were
compiled to serve them all, `all sizes` the seconds from the first call until every size was served once (compiling
included), the ratios are medians of interleaved repeats after that, as geometric means over the sizes. Static means
flashover with dynamic=False, compiled for each size.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from sized_workloads import WORKLOADS
from torch.utils._pytree import tree_leaves, tree_map

import flashover

Call = Callable[[], Any]


def loss_of(result: Any) -> torch.Tensor:
    parts = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    return torch.stack([t.float().square().mean() for t in parts]).sum()


def call_of(f: Callable[..., Any], args: tuple[Any, ...], training: bool) -> Call:
    def train() -> None:
        loss_of(f(*args)).backward()

    def infer() -> None:
        with torch.no_grad():
            f(*args)

    return train if training else infer


def seconds(call: Call, device: str) -> float:
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def torch_graphs() -> int:
    import torch._dynamo.utils as utils

    return int(utils.counters["stats"].get("unique_graphs", 0))


def geomean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(v) for v in values))


def own_copy(args: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    return tree_map(lambda t: t.to(device, copy=True) if isinstance(t, torch.Tensor) else t, args)


def measure(name: str, options: argparse.Namespace) -> str:
    workload = WORKLOADS[name]
    training = workload.training
    torch.manual_seed(0)
    model = workload.make().to(options.device)
    xs = [own_copy(workload.inputs(size), options.device) for size in workload.sizes[: options.sizes]]
    torch._dynamo.reset()
    ways: dict[str, Callable[..., Any]] = {
        "eager": model,
        "torch.compile": model if options.without_torch else torch.compile(model, dynamic=options.torch_dynamic),
        "static": flashover.compile(model, dynamic=False, options={"recompile_limit": 64}),
        "flashover": flashover.compile(model, dynamic=None, options={"remember_sizes": False}),
    }
    first, compiles, calls = {}, {}, {}
    for way, f in ways.items():
        # Tensors of its own: torch.compile leaves marks on those that it is given, which others follow.
        calls[way] = [call_of(f, own_copy(x, options.device), training) for x in xs]
        before = torch_graphs() if way == "torch.compile" else flashover.compile_stats()["graphs"]
        first[way] = sum(seconds(call, options.device) for call in calls[way])
        compiles[way] = (torch_graphs() if way == "torch.compile" else flashover.compile_stats()["graphs"]) - before
    times: dict[str, list[list[float]]] = {way: [[] for _ in xs] for way in ways}
    for _ in range(options.repeats):
        for i in range(len(xs)):
            for way in ways:
                times[way][i].append(seconds(calls[way][i], options.device))
    medians = {way: [statistics.median(t) for t in times[way]] for way in ways}

    def ratio(slow: str, fast: str) -> str:
        return f"{geomean([a / b for a, b in zip(medians[slow], medians[fast], strict=True)]):.2f}x"

    return (
        f"| {name} | {compiles['flashover']} | {compiles['torch.compile']} | {compiles['static']} | "
        f"{first['flashover']:.1f} s | {first['torch.compile']:.1f} s | {first['static']:.1f} s | "
        f"{ratio('eager', 'flashover')} | {ratio('torch.compile', 'flashover')} | {ratio('static', 'flashover')} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", default="", help="workloads that have this in their names")
    parser.add_argument("--sizes", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--without-torch", action="store_true", help="eager stands for torch.compile")
    parser.add_argument("--torch-dynamic", action="store_const", const=True, help="dynamic=True, not None, for torch")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    print("| workload | compiles | torch.compile's | static's | all sizes | torch.compile | static |", end="")
    print(" to eager | to torch.compile | to static |\n|---|---|---|---|---|---|---|---|---|---|")
    for name in WORKLOADS:
        if options.only in name:
            print(measure(name, options), flush=True)


if __name__ == "__main__":
    main()
