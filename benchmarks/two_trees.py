"""Two builds of Flashover side by side, for a refactor: processor time of a call and of a first call, kernels.

    python benchmarks/two_trees.py ../before . [--models bert,resnet18] [--repeats 7]

Each argument is a checkout with its extension built. Every model runs in a process a tree, one after the other, on one
thread. Times are the least processor time of the repeats, which says the same on a busy machine as on a quiet one; the
first call's includes the compilers it started. Ratios are to eager in the same process.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def spent() -> float:
    """Processor seconds of this process and of the children it has waited for."""
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def measure(name: str, repeats: int) -> dict[str, Any]:
    sys.path.insert(0, str(HERE))
    import torch
    import zoo

    import flashover

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model, args, kwargs = zoo.make(name)
    compiled = flashover.compile(model)
    ways = {"eager": model, "flashover": compiled}
    least = dict.fromkeys(ways, math.inf)
    with torch.no_grad():
        model(*args, **kwargs)
        begun = spent()
        compiled(*args, **kwargs)
        first = spent() - begun
        for _ in range(repeats):
            for way, call in ways.items():
                begun = time.thread_time()
                call(*args, **kwargs)
                least[way] = min(least[way], time.thread_time() - begun)
    counts = flashover.compile_stats()
    return {
        **least,
        "first": first - least["flashover"],
        "kernels": counts["kernels"],
        "externs": counts["extern_calls"],
    }


def row(tree: Path, name: str, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--row", name, "--repeats", str(repeats)],
            env={**os.environ, "PYTHONPATH": str(tree / "python"), "FLASHOVER_CACHE_DIR": cache},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        sys.exit(f"{tree}, {name}:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--models", default="")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--row", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        print(json.dumps(measure(given.row, given.repeats)))
        return
    if len(given.trees) != 2:
        parser.error("two trees are compared")
    sys.path.insert(0, str(HERE))
    import zoo

    trees = [tree.resolve() for tree in given.trees]
    print("| model | to eager, before | after | first call, before | after | kernels + externs, before | after |")
    print("|---|---|---|---|---|---|---|")
    logs = [0.0] * 4
    names = given.models.split(",") if given.models else zoo.ALL
    for name in names:
        rows = [row(tree, name, given.repeats) for tree in trees]
        speed = [r["eager"] / r["flashover"] for r in rows]
        for i, value in enumerate([*speed, *(r["first"] for r in rows)]):
            logs[i] += math.log(value)
        kernels = [f"{r['kernels']} + {r['externs']}" for r in rows]
        times = [f"{r['first']:.2f} s" for r in rows]
        print("|", " | ".join([name, *(f"{s:.2f}x" for s in speed), *times, *kernels]), "|", flush=True)
    means = [math.exp(value / len(names)) for value in logs]
    print(f"| geometric mean | {means[0]:.2f}x | {means[1]:.2f}x | {means[2]:.2f} s | {means[3]:.2f} s | | |")


if __name__ == "__main__":
    main()
