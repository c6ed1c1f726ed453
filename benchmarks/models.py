"""Eager, torch.compile and flashover over real models, in one run: right or wrong, speed, compile times, overhead,
memory.

    ./x bench                                  # the whole table
    ./x bench --models resnet18,bert --precision fp32 --no-warm
    ./x bench --json out.json --markdown docs/benchmarks/cpu.md
    ./x bench --jobs 8                         # a quiet machine with many cores: 8 rows at a time, each on cores of
    its own

Every row is a process of its own on --threads cores with empty cache folders. Run times are medians of interleaved
repeats (eager,
torch.compile, flashover, eager, ...); cold is the first call in that process less a steady one, warm the same in a
new process that finds
the caches filled; memory is the resident memory that the first compiled call added. "right" compares with an fp64
eager reference: rmse <= 2 x eager's own rmse + a floor (1e-5 fp32, 1e-2 bf16, of the reference's rms).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import math
import os
import queue
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
FLOOR = {"fp32": 1e-5, "bf16": 1e-2}
Call = Callable[[], Any]


@contextlib.contextmanager
def precision_scope(precision: str) -> Iterator[None]:
    import torch

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        yield


def tensors(result: Any) -> list[Any]:
    """Every tensor of a nested result, in a fixed order (ModelOutput and caches included)."""
    import torch

    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        return [t for value in result.values() for t in tensors(value)]
    if isinstance(result, (list, tuple)):
        return [t for value in result for t in tensors(value)]
    if hasattr(result, "layers"):  # transformers' Cache
        return [t for layer in result.layers for t in tensors(vars(layer))]
    return []


def error(result: Any, reference: Any) -> float:
    """rmse over the rms of the reference, all floating tensors together."""
    total = scale = 0.0
    got, want = tensors(result), tensors(reference)
    if len(got) != len(want):
        return math.inf
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            return math.inf
        if not b.is_floating_point():
            if not bool((a == b).all()):
                return math.inf
            continue
        total += float(((a.double() - b.double()) ** 2).sum())
        scale += float((b.double() ** 2).sum())
    return math.sqrt(total / max(scale, 1e-300))


def to_double(x: Any) -> Any:
    import torch

    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def make(name: str, small: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import zoo

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zoo.make(name, small)


def compiled(which: str, model: Any) -> Any:
    if which == "flashover":
        import flashover

        return flashover.compile(model, fullgraph=True)
    import torch

    return torch.compile(model)


def resident() -> float:
    """Peak resident memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def first_calls(which: str, model: Any, args: Any, kwargs: Any) -> tuple[Call, dict[str, float]]:
    """Compiles; seconds of the first call beyond a steady one, and the peak memory it added (MB)."""
    before = resident()
    start = time.perf_counter()
    fast = compiled(which, model)
    fast(*args, **kwargs)
    first = time.perf_counter() - start
    fast(*args, **kwargs)
    start = time.perf_counter()
    fast(*args, **kwargs)
    return lambda: fast(*args, **kwargs), {
        "seconds": first - (time.perf_counter() - start),
        "memory": resident() - before,
    }


def first_call(which: str, name: str, precision: str, small: bool) -> dict[str, float]:
    """Runs in a process of its own, for warm starts."""
    model, args, kwargs = make(name, small)
    with precision_scope(precision):
        model(*args, **kwargs)
        return first_calls(which, model, args, kwargs)[1]


def child(script: str, arguments: list[str], environment: dict[str, str], cores: list[int], limit: float) -> Any:
    """Runs the script on `cores`; the JSON of its last line."""
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env=environment, capture_output=True, text=True, timeout=limit, preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def interleaved(calls: dict[str, Call], budget: float) -> dict[str, float]:
    """Median seconds of each call; the calls take turns until `budget` seconds are spent (at least 5 rounds)."""
    times: dict[str, list[float]] = {key: [] for key in calls}
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            times[key].append(time.perf_counter() - start)
    return {key: statistics.median(values) for key, values in times.items()}


def measure(name: str, precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row but for the warm starts; in a process of its own."""
    import flashover

    row: dict[str, Any] = {"model": name, "precision": precision}
    model, args, kwargs = make(name, options.small)
    with precision_scope(precision):
        calls: dict[str, Call] = {"eager": lambda: model(*args, **kwargs)}
        calls["eager"]()
        stats = flashover.compile_stats()
        for key in ["flashover", "inductor"] if options.inductor else ["flashover"]:
            calls[key], row[f"{key}_cold"] = first_calls(key, model, args, kwargs)
        after = flashover.compile_stats()
        row |= {key: after[key] - stats[key] for key in ("kernels", "extern_calls", "graph_breaks", "graphs")}
        results = {key: call() for key, call in calls.items()}
        row["seconds"] = interleaved(calls, options.seconds)
    with_double = make(name, options.small)
    import torch

    with torch.no_grad():
        reference = with_double[0].double()(
            *[to_double(a) for a in args], **{k: to_double(v) for k, v in kwargs.items()}
        )
    row["error"] = {key: error(result, reference) for key, result in results.items()}
    row["right"] = row["error"]["flashover"] <= 2 * row["error"]["eager"] + FLOOR[precision]
    return row


@contextlib.contextmanager
def empty_caches(cores: list[int]) -> Iterator[dict[str, str]]:
    """The environment of a process on `cores` that finds nothing compiled."""
    with tempfile.TemporaryDirectory(prefix="flashover-bench-") as cache:
        yield os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "FLASHOVER_CACHE_DIR": cache,
            "OMP_NUM_THREADS": str(len(cores)),
        }


def run_row(name: str, precision: str, options: argparse.Namespace, cores: list[int]) -> dict[str, Any]:
    """Spawns the row's processes. A row that fails is a result, and the others must go on."""
    common = ["--models", name, "--precision", precision, *["--small"] * options.small]
    with empty_caches(cores) as environment:
        arguments = [*common, "--row", "--seconds", str(options.seconds), *["--no-inductor"] * (not options.inductor)]
        try:
            row = child(__file__, arguments, environment, cores, 600)
            for key in (["inductor", "flashover"] if options.inductor else ["flashover"]) if options.warm else []:
                row[f"{key}_warm"] = child(__file__, [*common, "--first-call", key], environment, cores, 600)
        except Exception as failure:
            row = {"model": name, "precision": precision, "failed": f"{type(failure).__name__}: {failure}"[:200]}
    print(row, file=sys.stderr, flush=True)
    return row


def overhead(seconds: float, inductor: bool) -> dict[str, float]:
    """Whole call of relu(x + 1) * 2 on 16 floats, microseconds."""
    import torch

    def tiny(x: Any) -> Any:
        return torch.relu(x + 1) * 2

    x = torch.randn(16)
    with torch.no_grad():
        calls: dict[str, Call] = {"eager": lambda: tiny(x)}
        for key in ["inductor", "flashover"] if inductor else ["flashover"]:
            fast = compiled(key, tiny)
            fast(x)
            calls[key] = lambda fast=fast: fast(x)
        repeat = 1000

        def many(call: Call) -> Call:
            def run() -> None:
                for _ in range(repeat):
                    call()

            return run

        return {k: v / repeat * 1e6 for k, v in interleaved({k: many(c) for k, c in calls.items()}, seconds).items()}


def geomean(values: list[float]) -> float:
    kept = [v for v in values if v > 0 and math.isfinite(v)]
    return math.exp(sum(map(math.log, kept)) / len(kept)) if kept else math.nan


def markdown(rows: list[dict[str, Any]], tiny: dict[str, float], command: str) -> str:
    import platform

    import torch

    def ratio(row: dict[str, Any], a: str, b: str) -> float:
        return row["seconds"].get(a, math.nan) / row["seconds"].get(b, math.nan)

    def seconds(row: dict[str, Any], key: str, what: str = "seconds") -> float:
        return row.get(key, {}).get(what, math.nan)

    cpu = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")),
        platform.machine(),
    )
    out = [
        f"`{command}` on {cpu}, {torch.get_num_threads()} threads, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}.",
        "",
        "| model | precision | right | eager ms | torch.compile x | flashover x | vs torch.compile | cold s (t.c / fl) | warm s (t.c / fl)"
        " | MB (t.c / fl) | kernels | externs | breaks |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "failed" in row:
            out.append(f"| {row['model']} | {row['precision']} | FAILED: {row['failed']} |" + " |" * 10)
            continue
        out.append(
            f"| {row['model']} | {row['precision']} | {'yes' if row['right'] else 'NO'} | {row['seconds']['eager'] * 1e3:.1f} "
            f"| {ratio(row, 'eager', 'inductor'):.2f} | {ratio(row, 'eager', 'flashover'):.2f} | {ratio(row, 'inductor', 'flashover'):.2f} "
            f"| {seconds(row, 'inductor_cold'):.1f} / {seconds(row, 'flashover_cold'):.2f} "
            f"| {seconds(row, 'inductor_warm'):.1f} / {seconds(row, 'flashover_warm'):.2f} "
            f"| {seconds(row, 'inductor_cold', 'memory'):.0f} / {seconds(row, 'flashover_cold', 'memory'):.0f} "
            f"| {row['kernels']} | {row['extern_calls']} | {row['graph_breaks']} |"
        )
    good = [r for r in rows if "failed" not in r]
    for precision in sorted({r["precision"] for r in good}):
        part = [r for r in good if r["precision"] == precision]
        out.append("")
        out.append(
            f"Geometric means, {precision} ({len(part)} models): torch.compile {geomean([ratio(r, 'eager', 'inductor') for r in part]):.2f}x "
            f"eager, flashover {geomean([ratio(r, 'eager', 'flashover') for r in part]):.2f}x eager, "
            f"{geomean([ratio(r, 'inductor', 'flashover') for r in part]):.2f}x torch.compile; cold compile "
            f"{geomean([seconds(r, 'inductor_cold') / seconds(r, 'flashover_cold') for r in part]):.1f}x faster, warm "
            f"{geomean([seconds(r, 'inductor_warm') / seconds(r, 'flashover_warm') for r in part]):.1f}x faster."
        )
    out += ["", "Tiny function, whole call: " + ", ".join(f"{k} {v:.1f} us" for k, v in tiny.items()) + "."]
    return "\n".join(out) + "\n"


def table_parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments of every table of models."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="comma list; default: all")
    parser.add_argument("--precision", default="fp32,bf16")
    parser.add_argument("--small", action="store_true", help="CI sizes")
    parser.add_argument("--seconds", type=float, default=6.0, help="time for the interleaved repeats of a model")
    parser.add_argument("--no-inductor", dest="inductor", action="store_false", help="leave torch.compile out")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time, each on --threads cores of its own")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    return parser


def run_rows(
    wanted: list[tuple[str, str]],
    options: argparse.Namespace,
    run: Callable[[str, str, argparse.Namespace, list[int]], dict[str, Any]],
    keep: Callable[[list[dict[str, Any]]], Any],
) -> list[dict[str, Any]]:
    """Rows (model, precision) in that order, --jobs at a time, each on cores of its own. --json gets `keep` of the rows
    so far after each."""
    usable = sorted(os.sched_getaffinity(0))
    slots: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for i in range(options.jobs):
        cores = usable[i * options.threads : (i + 1) * options.threads]
        if len(cores) < min(options.threads, len(usable)):
            raise SystemExit(
                f"--jobs {options.jobs} times --threads {options.threads} needs more cores than there are ({len(usable)})"
            )
        slots.put(cores)
    rows: list[dict[str, Any]] = []

    def work(name: str, precision: str) -> None:
        cores = slots.get()
        try:
            rows.append(run(name, precision, options, cores))
        finally:
            slots.put(cores)
        if options.json:
            options.json.write_text(json.dumps(keep(rows), indent=1))

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda w: work(*w), wanted))
    return sorted(rows, key=lambda r: wanted.index((r["model"], r["precision"])))


def publish(text: str, rows: list[dict[str, Any]], options: argparse.Namespace) -> int:
    """The exit status: 0 if every row is right."""
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    return 0 if all(r.get("right") for r in rows) else 1


def main() -> int:
    parser = table_parser(__doc__)
    parser.add_argument("--no-warm", dest="warm", action="store_false", help="skip the starts from filled caches")
    parser.add_argument("--first-call", choices=["inductor", "flashover"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first_call:
        print(json.dumps(first_call(options.first_call, options.models, options.precision, options.small)))
        return 0
    if options.row:
        print(json.dumps(measure(options.models, options.precision, options)))
        return 0
    import zoo

    tiny = overhead(options.seconds / 2, options.inductor)
    names = options.models.split(",") if options.models else zoo.ALL
    wanted = [(n, p) for n in names for p in options.precision.split(",")]
    rows = run_rows(wanted, options, run_row, lambda done: {"rows": done, "tiny": tiny})
    return publish(markdown(rows, tiny, "./x bench " + " ".join(sys.argv[1:])), rows, options)


if __name__ == "__main__":
    sys.exit(main())
