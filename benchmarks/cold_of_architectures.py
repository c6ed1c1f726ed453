"""Cold compiles over symbols beside static ones, for the architectures of the sweep (two samples each, all sizes symbols).

    python benchmarks/cold_of_architectures.py inception_v3 swinv2     # these
    python benchmarks/cold_of_architectures.py --slice 0/4             # every fourth
    python benchmarks/cold_of_architectures.py --repeats 3 --json rows.jsonl --slice 0/4

A forked process a compile, without a disk cache; of the repeats the shorter time counts, so that a busy machine matters
less. Behind each row: the stages that took longer with symbols.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["FLASHOVER_CACHE_DIR"] = ""
os.environ["FLASHOVER_REMEMBER_SIZES"] = "0"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch

sys.path.insert(0, str(Path(__file__).parent))
import models as bench
import sweep
import sweep_models

import flashover

SLOWEST_EAGER = 4.0  # seconds of a call: what takes longer shows nothing about compiling
Row = dict[str, Any]


class Lines(logging.Handler):
    """The lines of the topic `times`, one a compile."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def stages(line: str) -> tuple[float, dict[str, float]]:
    total, parts = line.split(" s: ", 1)
    return float(total.rsplit(" ", 1)[1]), {n: float(t) for n, t in re.findall(r"(\w+) (\d+\.\d+)(?:,|$)", parts)}


def in_child(work: Callable[[], Row], limit: int) -> Row:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(limit)
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1), os.dup2(quiet, 2)
            try:
                row = work()
            except BaseException as failure:
                row = {"error": f"{type(failure).__name__}: {failure}"[:200]}
            os.write(write, json.dumps(row).encode())
        finally:
            os._exit(0)
    os.close(write)
    data = b""
    while part := os.read(read, 1 << 16):
        data += part
    os.close(read)
    os.waitpid(child, 0)
    return json.loads(data) if data else {"error": f"over {limit} s"}


def compiled_once(model: Any, args: Any, kwargs: Any, dynamic: bool, log: Lines) -> Row:
    log.lines.clear()
    with torch.no_grad():
        flashover.compile(model, fullgraph=True, dynamic=dynamic)(*args, **kwargs)
    found = [stages(line) for line in log.lines]
    parts: dict[str, float] = {}
    for _, of_one in found:
        for name, seconds in of_one.items():
            parts[name] = parts.get(name, 0.0) + seconds
    return {"total": sum(total for total, _ in found), "graphs": len(found), "parts": parts}


def measure(kind: str, name: str, repeats: int, log: Lines) -> Row:
    with torch.no_grad():
        model, args, kwargs = sweep_models.make(kind, name)
        batch = next(t for t in bench.tensors((args, kwargs)) if t.dim() > 0).shape[0]
        args, kwargs = sweep.of_size((args, kwargs), batch, 2, 1)
        model(*args, **kwargs)
        start = time.perf_counter()
        model(*args, **kwargs)
        if (eager := time.perf_counter() - start) > SLOWEST_EAGER:
            return {"error": f"eager takes {eager:.1f} s"}
    best: Row = {}
    for _ in range(repeats):
        for what, dynamic in (("static", False), ("symbols", True)):
            row = in_child(lambda d=dynamic: compiled_once(model, args, kwargs, d, log), 30)
            if "error" in row:
                return {"error": f"{what}: {row['error']}"}
            if what not in best or row["total"] < best[what]["total"]:
                best[what] = row
    return best


def text(name: str, row: Row) -> str:
    if "error" in row:
        return f"{name}: {row['error']}"
    static, symbols = row["static"], row["symbols"]
    longer = {n: s - static["parts"].get(n, 0.0) for n, s in symbols["parts"].items()}
    worst = sorted(longer.items(), key=lambda item: -item[1])[:3]
    stages_text = ", ".join(f"{n} +{s:.3f}" for n, s in worst)
    ratio = symbols["total"] / static["total"]
    return f"{ratio:.2f}x {name}: {static['total']:.2f} s, {symbols['total']:.2f} s with symbols ({stages_text})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--slice", default="0/1")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", default="", help="a line a model is added to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    log, times = Lines(), logging.getLogger("flashover.times")
    times.handlers[:], times.propagate = [log], False
    times.setLevel(logging.INFO)
    first, step = map(int, options.slice.split("/"))
    cases = [c for c in sweep_models.cases() if not options.names or c[1] in options.names][first::step]
    for kind, name in cases:
        row = in_child(lambda k=kind, n=name: measure(k, n, options.repeats, log), 90)
        print(text(name, row), flush=True)
        if options.json:
            with open(options.json, "a") as file:
                file.write(json.dumps({"kind": kind, "model": name, **row}) + "\n")


if __name__ == "__main__":
    main()
