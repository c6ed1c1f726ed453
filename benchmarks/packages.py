"""Packages beside AOTInductor's: building, size, loading, the first call and steady speed, in one run on the CPU.

    python benchmarks/packages.py [--threads 1,2] [--models resnet50,bert] [--seconds 8] [--json rows.json]
        [--markdown docs/benchmarks/packages.md] [--realtime] [--device cuda]

A row is a model at one number of threads, on as many cores, with empty cache folders. Build: export and package in one
process, first Flashover, then torch.export with torch._inductor.aoti_compile_and_package. Load and first call: medians
over processes that have done nothing with torch but one addition; "runner" is flashover-run, a process without Python.
AOTInductor's is its C++ loader called from Python.
Steady: medians of calls that take turns in one process, eager, flashover.compile, both packages. "wrong": results that
differ from eager's by more than 1e-3 of their rms; "bits": whether our package's are those of flashover.compile.
--device cuda: model and packages on the GPU ("native"), times with the device's work done.
--realtime (root): what is measured runs before anything else on the machine, its threads each on a core of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import models as bench
import numpy as np
import thread_counts
import torch
import training

MODELS = "resnet50,mobilenetv3_large_100,vit_small_patch16_224,bert,gpt2,lstm_cell"
PROCESSES = 3  # of which a load time is the median
Row = dict[str, Any]
OURS, THEIRS = "ours.flash", "theirs.pt2"


def make(row: Row) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """Positional arguments only: what both kinds of packages take the same way."""
    model, args, kwargs = thread_counts.make(row["model"], row["batch"])
    if hasattr(model, "config"):
        model.config.use_cache = False
    module, given = training.OnlyTensors(model.eval()).eval().to(row["device"]), (*args, *kwargs.values())
    return module, tuple(a.to(row["device"]) if isinstance(a, torch.Tensor) else a for a in given)


def finish(row: Row) -> None:
    if row["device"] == "cuda":
        torch.cuda.synchronize()


def build(row: Row, folder: Path) -> Row:
    import flashover

    model, args = make(row)
    with torch.no_grad():
        model(*args)
        start = time.perf_counter()
        program = flashover.export(model, args)
        exported = time.perf_counter()
        flashover.package(program, folder / OURS)
        row |= {"our_export": exported - start, "our_package": time.perf_counter() - exported}
        start = time.perf_counter()
        program = torch.export.export(model, args)
        exported = time.perf_counter()
        torch._inductor.aoti_compile_and_package(program, package_path=str(folder / THEIRS))
        row |= {"their_export": exported - start, "their_package": time.perf_counter() - exported}
    for i, t in enumerate(bench.tensors(list(args))):
        np.save(folder / f"in{i}.npy", t.cpu().numpy())
    return row | {"our_bytes": (folder / OURS).stat().st_size, "their_bytes": (folder / THEIRS).stat().st_size}


def go_first(row: Row) -> None:
    if row["realtime"]:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def load_theirs(path: Path) -> Any:
    """As torch._inductor.aoti_load_package, without its look at the machine: that asks g++ for 13 s, once a process."""
    from torch.export.pt2_archive._package import AOTICompiledModel

    return AOTICompiledModel(torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1))


def load_and_call(row: Row, folder: Path, which: str) -> Row:
    """Milliseconds to load, and of the first call."""
    import flashover

    files = sorted(folder.glob("in*.npy"), key=lambda p: int(p.stem[2:]))
    args = [torch.from_numpy(np.load(file)).to(row["device"]) for file in files]
    go_first(row)
    with torch.no_grad():
        torch.ones(1 << 20, device=row["device"]) + 1  # the threads, or the device's context, exist
        finish(row)
        start = time.perf_counter()
        package = flashover.load(folder / OURS) if which == "ours" else load_theirs(folder / THEIRS)
        loaded = time.perf_counter()
        package(*args)
        finish(row)
        return {"load": (loaded - start) * 1e3, "first": (time.perf_counter() - loaded) * 1e3}


def in_any_order(calls: dict[str, bench.Call], row: Row) -> dict[str, float]:
    """Median seconds; what one leaves in the caches is there for another each time."""
    times: dict[str, list[float]] = {key: [] for key in calls}
    end = time.perf_counter() + row["budget"]
    while time.perf_counter() < end or len(times["ours"]) < 5:
        for key in random.sample(list(calls), len(calls)):
            start = time.perf_counter()
            calls[key]()
            finish(row)
            times[key].append(time.perf_counter() - start)
    return {key: statistics.median(values) for key, values in times.items()}


def steady(row: Row, folder: Path) -> Row:
    import flashover

    go_first(row)  # as do the threads that come from here on
    model, args = make(row)
    with torch.no_grad():
        jit = flashover.compile(model, fullgraph=True)
        ours, theirs = flashover.load(folder / OURS), load_theirs(folder / THEIRS)
        calls: dict[str, bench.Call] = {
            "eager": lambda: model(*args),
            "jit": lambda: jit(*args),
            "ours": lambda: ours(*args),
            "theirs": lambda: theirs(*args),
        }
        results = {key: bench.tensors(call()) for key, call in calls.items()}
        wrong = [key for key, got in results.items() if bench.error(got, results["eager"]) > 1e-3]
        bits = all(torch.equal(a, b) for a, b in zip(results["ours"], results["jit"], strict=True))
        for call in calls.values():
            call()
        return row | {"wrong": wrong, "bits": bits, "seconds": in_any_order(calls, row)}


def by_runner(folder: Path, row: Row, environment: dict[str, str], cores: list[int]) -> Row:
    import flashover

    runner = Path(flashover.__file__).parent / "runtime" / "bin" / "flashover-run"
    files = sorted(folder.glob("in*.npy"), key=lambda p: int(p.stem[2:]))
    command = [str(c) for c in (runner, folder / OURS, *files, "--threads", row["threads"], "--device", row["device"])]

    def prepare() -> None:
        os.sched_setaffinity(0, cores)
        go_first(row)

    out = subprocess.run(command, capture_output=True, text=True, env=environment, preexec_fn=prepare)
    found = re.search(r"load (\d+) us, first call (\d+) us", out.stdout)
    if not found:
        raise RuntimeError(out.stderr.strip()[:200])
    return {"load": int(found[1]) / 1e3, "first": int(found[2]) / 1e3}


def run_row(row: Row, cores: list[int]) -> Row:
    with bench.empty_caches(cores) as environment, tempfile.TemporaryDirectory(prefix="flashover-aot-") as text:
        folder = Path(text)
        if row["realtime"]:
            environment["OMP_PROC_BIND"] = "true"

        def child(step: str) -> Row:
            arguments = ["--step", step, "--row", json.dumps(row), "--folder", text]
            return bench.child(__file__, arguments, environment, cores, 1500)

        try:
            row = child("build")
            for which in ("ours", "theirs", "runner"):
                runs = [
                    by_runner(folder, row, environment, cores) if which == "runner" else child(f"load {which}")
                    for _ in range(PROCESSES)
                ]
                row |= {f"{which}_{key}": statistics.median(r[key] for r in runs) for key in ("load", "first")}
            row |= child("steady")
        except Exception as failure:  # a row that fails is a result, and the others must go on
            row = row | {"failed": f"{type(failure).__name__}: {failure}"[:200]}
    print(row, file=sys.stderr, flush=True)
    return row


def table(rows: list[Row]) -> str:
    out = [
        "| model | threads | build s: ours, AOTI | | MB: ours, AOTI | load ms: ours, runner, AOTI | first call ms: ours, runner, AOTI | call ms | JIT / ours | AOTI / ours | eager / ours | bits |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios: dict[str, list[float]] = {"build": [], "jit": [], "theirs": [], "eager": []}
    for row in rows:
        if "seconds" not in row:
            out.append(f"| {row['model']} | {row['threads']} | {row.get('failed', '')} |" + " |" * 9)
            continue
        ours, theirs = row["our_export"] + row["our_package"], row["their_export"] + row["their_package"]
        times = row["seconds"]
        ratios["build"].append(theirs / ours)
        for key in ("jit", "theirs", "eager"):
            ratios[key].append(times[key] / times["ours"])
        bits = "equal" if row["bits"] else "differ"
        out.append(
            f"| {row['model']} | {row['threads']} | {ours:.2f}, {theirs:.1f} | {theirs / ours:.0f}x"
            f" | {row['our_bytes'] / 1e6:.1f}, {row['their_bytes'] / 1e6:.1f}"
            f" | {row['ours_load']:.1f}, {row['runner_load']:.1f}, {row['theirs_load']:.0f}"
            f" | {row['ours_first']:.1f}, {row['runner_first']:.1f}, {row['theirs_first']:.1f} | {times['ours'] * 1e3:.2f}"
            + "".join(f" | {ratios[key][-1]:.2f}x" for key in ("jit", "theirs", "eager"))
            + f" | {bits}{', WRONG: ' + ', '.join(row['wrong']) if row['wrong'] else ''} |"
        )
    means = {key: bench.geomean(values) for key, values in ratios.items() if values}
    if means:
        out.append(
            f"| geometric mean | | | {means['build']:.0f}x | | | | | {means['jit']:.2f}x | {means['theirs']:.2f}x | {means['eager']:.2f}x | |"
        )
    return "\n".join(out)


def machine() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} cores"


def page(rows: list[Row], command: str) -> str:
    return "\n".join(
        [
            "# Packages beside AOTInductor",
            "",
            f"`{command}`, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}, {machine()}, f32.",
            "",
            f"Build: export and package. Load and first call: in new processes, medians of {PROCESSES}; runner: `flashover-run`,",
            "without Python. AOTI's is its C++ loader: `aoti_load_package` in Python also asks g++ what the processor has,",
            "once a process, which takes 13 s. Ratios above 1: our package is quicker. bits: our package's results beside those of",
            "`flashover.compile`.",
            "",
            table(rows),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0, help="of calls that take turns, a row")
    parser.add_argument("--json", type=Path, help="rows that are in it already are kept")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--realtime", action="store_true", help="on a busy machine, as root")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        warnings.simplefilter("ignore")
        row = json.loads(options.row)
        torch.set_num_threads(row["threads"])
        step, _, which = options.step.partition(" ")
        arguments = (row, options.folder, *([which] if which else []))
        print(json.dumps({"build": build, "load": load_and_call, "steady": steady}[step](*arguments)))
        return 0
    done: list[Row] = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    cores = sorted(os.sched_getaffinity(0))
    for threads in map(int, options.threads.split(",")):
        for name in options.models.split(","):
            if any((r["model"], r["threads"]) == (name, threads) and "seconds" in r for r in done):
                continue
            row = {
                "model": name,
                "threads": threads,
                "batch": options.batch,
                "device": options.device,
                "budget": options.seconds,
                "realtime": options.realtime,
            }
            done.append(run_row(row, cores[:threads]))
            if options.json:
                options.json.write_text(json.dumps(done, indent=1))
    on_gpu = options.device == "cuda"
    text = page(done, "python benchmarks/packages.py" + " --device cuda" * on_gpu + " --realtime" * options.realtime)
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
