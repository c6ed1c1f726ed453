"""Eager, torch.compile and flashover on an NVIDIA GPU, side by side: right or wrong, speed, first calls, memory.

    ./x device bench                                   # everything: inference and training, both modes of both compilers
    ./x device bench --limit 400 --json $OUT/gpu.json --markdown $OUT/gpu.md    # what fits into 400 seconds
    ./x device bench --resume --json gpu.json          # goes on where that file ends
    python benchmarks/gpu.py --small --device cpu      # the script itself, anywhere

bf16 autocast. A job is one model, inference or training, in a process of its own. Jobs run in batches: those of a batch
compile at once, then they are timed one after the other, alone on the GPU, while the next batch only imports. So first
calls are taken on a busy machine, alike for all. Times are medians of interleaved rounds of about 20 ms between two
synchronizations. A training step is zero_grad, forward, backward, and the optimizer's step in eager.

right: results (training: loss and gradients of the first step) against eager in fp32 with TF32 off; the error may be
twice eager's under autocast plus 1e-2. cold: the first call with empty caches. warm: the first call again after a
reset of both compilers, with what their caches on disk hold. MB: the most memory in use, weights, gradients and the
optimizer's state included.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

Call = Callable[[], Any]
FLOOR = 1e-2
CONTESTANTS = ["inductor", "flashover", "inductor_ro", "flashover_ro"]
NAMES = {"inductor": "torch.compile", "inductor_ro": "torch.compile reduce-overhead", "flashover": "flashover",
         "flashover_ro": "flashover reduce-overhead", "flashover_max": "flashover max-autotune", "eager": "eager"}  # fmt: skip
OUT = sys.stdout  # what the parent reads; everything else that is printed goes to stderr


# ---------------------------------------------------------------------------------------------------- one job


class Job:
    """One model in this process. Lines in: "compile", "time". Lines out: JSON, one a phase."""

    def __init__(self, name: str, training: bool, options: argparse.Namespace) -> None:
        import torch

        self.torch, self.name, self.training, self.options = torch, name, training, options
        self.cuda = options.device == "cuda"
        from gpu_models import make

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model, self.inputs = make(name, training, options.small)
        self.row: dict[str, Any] = {"model": name, "training": training}
        self.calls: dict[str, Call] = {}

    def sync(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def compiled(self, key: str, model: Any) -> Any:
        if key == "eager":
            return model
        if key.startswith("inductor"):
            return self.torch.compile(model, mode="reduce-overhead" if key.endswith("_ro") else None)
        import flashover

        modes = {"flashover": None, "flashover_ro": "reduce-overhead", "flashover_max": "max-autotune"}
        options = dict(flashover.options.MODES[modes[key] or "default"])
        if self.training and "cuda_training" in flashover.list_options():
            options["cuda_training"] = True
        return flashover.compile(model, options=options)

    def forward(self, model: Any) -> Any:
        with self.torch.autocast(self.options.device, self.torch.bfloat16):
            return model(**self.inputs)

    def once(self, model: Any) -> Any:
        """What is compared: results; or the loss and the gradients."""
        if not self.training:
            with self.torch.no_grad():
                return self.forward(model)
        from gpu_models import loss_of

        loss = loss_of(self.forward(model))
        loss.backward()
        return loss

    def compare(self, model: Any, out: Any) -> list[Any]:
        from models import tensors

        found = tensors(out)
        if self.training:
            found = [found[0], *(p.grad for p in model.parameters() if p.grad is not None)]
        return [t.detach().float().clone() if t.is_floating_point() else t.clone() for t in found]

    def step_of(self, key: str, model: Any, fast: Any) -> Call:
        torch = self.torch
        mark = torch.compiler.cudagraph_mark_step_begin if key.endswith("_ro") and self.cuda else lambda: None
        if not self.training:

            def infer() -> Any:
                mark()
                with torch.no_grad():
                    return self.forward(fast)

            return infer
        from gpu_models import loss_of, optimizer

        steps = optimizer(self.name, model)

        def step() -> None:
            mark()
            steps.zero_grad(set_to_none=True)
            loss_of(self.forward(fast)).backward()
            steps.step()

        return step

    def prepare(self) -> None:
        """The phase that may share the machine: references, compilation, comparison, memory."""
        torch = self.torch
        from models import error

        if self.cuda:
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False
        to = lambda v: v.to(self.options.device) if isinstance(v, torch.Tensor) else v  # noqa: E731
        self.inputs = {k: to(v) for k, v in self.inputs.items()}
        base = self.model.to(self.options.device)
        row = self.row
        row |= {"first": {}, "warm": {}, "memory": {}, "error": {}, "failed": {}, "breaks": {}, "kernels": {}}
        reference = copy.deepcopy(base)
        if self.training:
            from gpu_models import loss_of

            loss = loss_of(reference(**self.inputs))
            loss.backward()
            expected = self.compare(reference, loss)
        else:
            with torch.no_grad():
                expected = self.compare(reference, reference(**self.inputs))
        del reference
        for key in ["eager", *self.options.which]:
            try:
                self.contestant(key, base, expected, error)
            except Exception as failure:  # is a result; the others go on
                traceback.print_exc()
                row["failed"][key] = f"{type(failure).__name__}: {failure}"[:300]
            if self.cuda:
                torch.cuda.empty_cache()

    def contestant(self, key: str, base: Any, expected: list[Any], error: Callable[[Any, Any], float]) -> None:
        torch, row = self.torch, self.row
        before = torch.cuda.memory_allocated() if self.cuda else 0
        model = copy.deepcopy(base)
        fast = self.compiled(key, model)
        counts = self.counters(key)
        self.sync()
        start = time.perf_counter()
        out = self.once(fast)
        self.sync()
        row["first"][key] = time.perf_counter() - start
        row["error"][key] = error(self.compare(model, out), expected)
        del out
        row["breaks"][key], row["kernels"][key] = (b - a for a, b in zip(counts, self.counters(key), strict=True))
        step = self.step_of(key, model, fast)
        for _ in range(3):
            step()
        if not self.training:  # what comes after recording a CUDA graph is to be right as well
            row["error"][key] = max(row["error"][key], error(self.compare(model, step()), expected))
        self.sync()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            step()
            self.sync()
            row["memory"][key] = (torch.cuda.max_memory_allocated() - before) / 2**20
        if key in ("inductor", "flashover") and self.options.warm:
            self.sync()
            if key == "inductor":
                torch._dynamo.reset()
            else:
                import flashover

                flashover.reset()
            self.sync()
            start = time.perf_counter()
            self.once(fast)
            self.sync()
            row["warm"][key] = time.perf_counter() - start
            model.zero_grad(set_to_none=True)
        self.calls[key] = step

    def counters(self, key: str) -> tuple[int, int]:
        """Graph breaks (and calls left eager) so far, kernels so far."""
        if key.startswith("flashover"):
            import flashover

            stats = flashover.compile_stats()
            return stats["graph_breaks"], stats["kernels"]
        if key == "eager":
            return 0, 0
        from torch._dynamo.utils import counters
        from torch._inductor import metrics

        return sum(counters["graph_break"].values()), metrics.generated_kernel_count

    def measure(self) -> None:
        """The phase that wants the GPU for itself."""
        count: dict[str, int] = {}
        for key, call in list(self.calls.items()):
            try:
                for _ in range(3):
                    call()
                self.sync()
                start = time.perf_counter()
                call()
                self.sync()
            except Exception as failure:
                self.row["failed"][key] = f"{type(failure).__name__}: {failure}"[:300]
                del self.calls[key]
                continue
            count[key] = max(1, min(200, int(0.02 / max(time.perf_counter() - start, 1e-6))))
        times: dict[str, list[float]] = {key: [] for key in self.calls}
        end = time.perf_counter() + self.options.seconds
        for rounds in range(100_000):
            if rounds >= 5 and time.perf_counter() > end:
                break
            for key, call in self.calls.items():
                self.sync()
                start = time.perf_counter()
                for _ in range(count[key]):
                    call()
                self.sync()
                times[key].append((time.perf_counter() - start) / count[key])
        self.row["seconds"] = {key: statistics.median(values) for key, values in times.items()}
        self.row["least"] = {key: min(values) for key, values in times.items()}
        if self.options.profile:
            wanted = self.options.profile.split(",")
            self.row["profile"] = {k: self.kernels(c) for k, c in self.calls.items() if k in wanted}
        mine = [k for k in self.options.which if k.startswith("flashover")]
        bound = 2 * self.row["error"].get("eager", math.nan) + FLOOR
        self.row["right"] = bool(mine) and all(self.row["error"].get(k, math.inf) <= bound for k in mine)

    def kernels(self, call: Call) -> list[tuple[str, float, int]]:
        """GPU kernels of one call: name, microseconds, count; the longest first."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA] if self.cuda else [ProfilerActivity.CPU]) as p:
            call()
            self.sync()
        rows = [(e.key, e.self_device_time_total, e.count) for e in p.key_averages() if e.self_device_time_total > 0]
        return sorted(rows, key=lambda r: -r[1])[:20]

    def serve(self) -> None:
        phases = {"compile": self.prepare, "time": self.measure}
        print(json.dumps({"phase": "ready"}), file=OUT, flush=True)
        for line in sys.stdin:
            try:
                phases[line.strip()]()
                print(json.dumps({"phase": line.strip(), "row": self.row}), file=OUT, flush=True)
            except Exception as failure:
                traceback.print_exc()
                self.row.setdefault("failed", {})["all"] = f"{type(failure).__name__}: {failure}"[:300]
                print(json.dumps({"phase": "failed", "row": self.row}), file=OUT, flush=True)
                return
            if line.strip() == "time":
                return


class TinyJob(Job):
    """Whole call of relu(x + 1) * 2 on 16 floats."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        self.torch, self.name, self.training, self.options = torch, "tiny", False, options
        self.cuda = options.device == "cuda"
        self.row, self.calls = {"model": "tiny", "training": False, "failed": {}, "error": {}}, {}

    def prepare(self) -> None:
        torch = self.torch

        def tiny(x: Any) -> Any:
            return torch.relu(x + 1) * 2

        torch.set_grad_enabled(False)
        x = torch.randn(16, device=self.options.device)
        for key in ["eager", *self.options.which]:
            fast = self.compiled(key, tiny)

            def call(fast: Any = fast) -> Any:
                return fast(x)

            self.row["error"][key] = float((call() - tiny(x)).abs().max())
            self.calls[key] = call


def work(options: argparse.Namespace) -> None:
    global OUT
    OUT = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task, name = options.worker.split(":")
    (TinyJob(options) if name == "tiny" else Job(name, task == "training", options)).serve()


# ---------------------------------------------------------------------------------------------------- all of them


class Worker:
    def __init__(self, job: tuple[str, str], arguments: list[str], folder: str, log: Any) -> None:
        self.job, self.started = job, time.monotonic()
        self.row: dict[str, Any] | None = None
        self.phase = "starting"
        environment = dict(os.environ)
        for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLASHOVER_CACHE_DIR"):
            environment[variable] = str(Path(folder) / f"{job[0]}-{job[1]}-{variable}")
        environment.setdefault("HF_HUB_OFFLINE", "1")
        environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
        self.process = subprocess.Popen(
            [sys.executable, __file__, *arguments, "--worker", ":".join(job)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True,
        )  # fmt: skip
        self.pending = b""

    def ask(self, phase: str) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(phase.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            self.phase = "dead"

    def wait(self, phases: tuple[str, ...], deadline: float) -> bool:
        """Until it has reached one of these phases, is dead, or the time is up."""
        assert self.process.stdout
        fd = self.process.stdout.fileno()
        while self.phase not in (*phases, "dead", "failed"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                return False
            part = os.read(fd, 1 << 16)
            if not part:
                self.phase = "dead"
                break
            self.pending += part
            while b"\n" in self.pending:
                line, self.pending = self.pending.split(b"\n", 1)
                message = json.loads(line)
                self.phase, self.row = message["phase"], message.get("row", self.row)
        return self.phase in phases

    def end(self, why: str = "") -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.phase != "time":
            self.row = self.row or {"model": self.job[1], "training": self.job[0] == "training"}
            code = self.process.returncode
            self.row.setdefault("failed", {}).setdefault("all", why or f"the process ended with {code}")


def run(jobs: list[tuple[str, str]], options: argparse.Namespace, done: Callable[[dict[str, Any]], None]) -> list[str]:
    """Runs jobs in batches; what was not reached when the time was up."""
    deadline = time.monotonic() + options.limit if options.limit else math.inf
    arguments = sys.argv[1:]
    batches = [jobs[i : i + options.batch] for i in range(0, len(jobs), options.batch)]
    left_out: list[str] = []
    with tempfile.TemporaryDirectory(prefix="flashover-bench-") as folder, open(options.log or os.devnull, "w") as log:

        def start(batch: list[tuple[str, str]]) -> list[Worker]:
            return [Worker(job, arguments, folder, log) for job in batch]

        waiting = start(batches[0]) if batches else []
        for number, batch in enumerate(batches):
            workers = waiting
            if time.monotonic() + 30 > deadline:
                left_out += [":".join(job) for b in batches[number:] for job in b]
                for w in workers:
                    w.end("no time left")
                break
            begin = time.monotonic()
            ready = [w for w in workers if w.wait(("ready",), min(deadline, begin + 120))]
            for w in ready:
                w.ask("compile")
            # The rest of the time belongs to timing what was compiled.
            most = min(begin + options.compile_limit, deadline - 5 * len(ready))
            compiled = [w for w in ready if w.wait(("compile",), most)]
            for w in workers:
                if w not in compiled:
                    w.end(f"no answer after {time.monotonic() - begin:.0f} s in phase {w.phase}")
            print(f"batch {number + 1} of {len(batches)}: {len(compiled)} of {len(batch)} compiled in "
                  f"{time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)  # fmt: skip
            waiting = start(batches[number + 1]) if number + 1 < len(batches) else []
            for w in waiting:  # importing is over before anything is timed
                w.wait(("ready",), min(deadline, time.monotonic() + 60))
            for w in compiled:
                w.ask("time")
                w.wait(("time",), min(deadline, time.monotonic() + 60 + 3 * options.seconds))
                w.end(f"no answer in phase {w.phase}")
            for w in workers:
                if w.row:
                    done(w.row)
    return left_out


def ratio(row: dict[str, Any], a: str, b: str) -> float:
    return row.get("seconds", {}).get(a, math.nan) / row.get("seconds", {}).get(b, math.nan)


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def table(rows: list[dict[str, Any]]) -> list[str]:
    def over(values: dict[str, float], keys: tuple[str, ...], digits: int) -> str:
        return " / ".join(number(values.get(k), digits) for k in keys)

    out = [
        "| model | right | eager ms | t.c x | fl x | fl vs t.c | t.c r-o x | fl r-o x | r-o vs r-o | cold s t.c / fl | warm s t.c / fl "
        "| MB eager / t.c / fl | breaks t.c / fl | kernels t.c / fl |",
        "|---" * 14 + "|",
    ]
    for row in rows:
        if "seconds" not in row:
            out.append(f"| {row['model']} | FAILED: {row.get('failed')} |" + " |" * 12)
            continue
        wrong = "" if row["right"] else "NO " + str({k: number(v, 4) for k, v in row["error"].items()})
        failed = {k: v for k, v in row["failed"].items() if k.startswith("flashover")}
        memory, both = ("eager", "inductor", "flashover"), ("inductor", "flashover")
        out.append(
            f"| {row['model']} | {(wrong or 'yes') + (' ' + str(failed) if failed else '')} "
            f"| {number(row['seconds'].get('eager', math.nan) * 1e3)} | {number(ratio(row, 'eager', 'inductor'))} "
            f"| {number(ratio(row, 'eager', 'flashover'))} | **{number(ratio(row, 'inductor', 'flashover'))}** "
            f"| {number(ratio(row, 'eager', 'inductor_ro'))} | {number(ratio(row, 'eager', 'flashover_ro'))} "
            f"| **{number(ratio(row, 'inductor_ro', 'flashover_ro'))}** | {over(row['first'], both, 2)} "
            f"| {over(row['warm'], both, 2)} | {over(row['memory'], memory, 0)} | {over(row['breaks'], both, 0)} "
            f"| {over(row['kernels'], both, 0)} |"
        )
    return out


def means(rows: list[dict[str, Any]]) -> str:
    from models import geomean

    def mean(a: str, b: str) -> str:
        return number(geomean([ratio(r, a, b) for r in rows]))

    def starts(kind: str) -> str:
        pairs = [
            r[kind].get("inductor", math.nan) / max(r[kind].get("flashover", math.nan), 1e-9) for r in rows if kind in r
        ]
        return number(geomean(pairs), 1)

    slow = [r["model"] for r in rows if ratio(r, "eager", "flashover") < 0.97]
    behind = [r["model"] for r in rows if ratio(r, "inductor", "flashover") < 1]
    return (
        f"Geometric means over {len(rows)} models: flashover {mean('inductor', 'flashover')}x torch.compile, "
        f"{mean('eager', 'flashover')}x eager (torch.compile {mean('eager', 'inductor')}x); reduce-overhead "
        f"{mean('inductor_ro', 'flashover_ro')}x torch.compile's, {mean('eager', 'flashover_ro')}x eager. First calls "
        f"{starts('first')}x faster cold, {starts('warm')}x warm. Below 0.97x eager: {', '.join(slow) or 'none'}. "
        f"Behind torch.compile: {', '.join(behind) or 'none'}."
    )


def markdown(rows: list[dict[str, Any]], left_out: list[str], options: argparse.Namespace) -> str:
    import torch

    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    command = "./x device bench " + " ".join(sys.argv[1:])
    out = [f"`{command}` on {where}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}; bf16 autocast.", ""]
    for training in (False, True):
        part = [r for r in rows if r["training"] == training and r["model"] != "tiny"]
        if part:
            out += ["## " + ("Training" if training else "Inference"), "", *table(part), ""]
            out += [means([r for r in part if "seconds" in r]), ""]
    for row in rows:
        if row["model"] == "tiny" and "seconds" in row:
            out.append("Tiny function, whole call: "
                       + ", ".join(f"{NAMES[k]} {v * 1e6:.1f} us" for k, v in row["seconds"].items()) + ".")  # fmt: skip
    others = [(r["model"], k, v) for r in rows for k, v in r.get("failed", {}).items() if "seconds" in r]
    if others:
        out += ["", "Failed: " + "; ".join(f"{m} {NAMES.get(k, k)}: {v}" for m, k, v in others)]
    if left_out:
        out += ["", "Not reached: " + ", ".join(left_out)]
    for row in rows:
        for key, kernels in row.get("profile", {}).items():
            total, count = sum(k[1] for k in kernels), sum(k[2] for k in kernels)
            kind = "training" if row["training"] else "inference"
            out += [
                "",
                f"{row['model']} {kind}, {NAMES[key]}: {total:.0f} us in {count} kernels (the longest 20 names)",
            ]
            out += [f"    {us:8.0f} us {n:4d}x {name[:110]}" for name, us, n in kernels[:14]]
    return "\n".join(out) + "\n"


def main() -> int:
    from gpu_models import INFERENCE, MODELS, OTHERS, TRAINING

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models",
        default="",
        help="comma list of " + ",".join(MODELS) + ",tiny,timm/NAME; others: " + ",".join(OTHERS),
    )
    parser.add_argument("--tasks", default="inference,training")
    parser.add_argument("--training", action="store_const", dest="tasks", const="training", help="only that")
    parser.add_argument("--inference", action="store_const", dest="tasks", const="inference", help="only that")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS), help="also flashover_max")
    parser.add_argument("--no-inductor", dest="inductor", action="store_false", help="leave torch.compile out")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for the interleaved rounds of a job")
    parser.add_argument("--limit", type=float, default=0, help="seconds for everything")
    parser.add_argument("--batch", type=int, default=8, help="jobs that compile at once")
    parser.add_argument("--compile-limit", type=float, default=180, help="seconds for the compilations of a batch")
    parser.add_argument("--no-warm", dest="warm", action="store_false", help="no second first call")
    parser.add_argument("--profile", default="", help="contestants whose kernels are listed")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="tiny models: to try the script")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep the rows of --json and leave their jobs out")
    parser.add_argument("--log", default="", help="where what the jobs print goes")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.which = [c for c in options.contestants.split(",") if options.inductor or not c.startswith("inductor")]
    if options.worker:
        work(options)
        return 0
    rows: list[dict[str, Any]] = []
    if options.resume and options.json and options.json.exists():
        rows = [r for r in json.loads(options.json.read_text())["rows"] if "seconds" in r]
    had = {("training" if r["training"] else "inference", r["model"]) for r in rows}
    chosen = options.models.split(",") if options.models else None
    if chosen and "others" in chosen:
        chosen = [*(n for n in chosen if n != "others"), *OTHERS]
    jobs = []
    for task, names in (("inference", ["tiny", *INFERENCE]), ("training", TRAINING)):
        if task in options.tasks.split(","):
            jobs += [(task, n) for n in (chosen or names) if not (n == "tiny" and task == "training")]
    jobs = [j for j in jobs if j not in had]
    # What the two tables need most comes first in both.
    if not chosen:
        jobs.sort(key=lambda j: ["tiny", *INFERENCE].index(j[1]) // 6)

    def save(left_out: list[str]) -> None:
        if options.json:
            options.json.write_text(json.dumps({"rows": rows, "left_out": left_out}, indent=1))
        if options.markdown:
            options.markdown.write_text(markdown(rows, left_out, options))

    def done(row: dict[str, Any]) -> None:
        rows.append(row)
        short = {k: v for k, v in row.items() if k in ("model", "training", "right", "seconds", "failed")}
        print(json.dumps(short), file=sys.stderr, flush=True)
        save([])

    left_out = run(jobs, options, done)
    save(left_out)
    print(markdown(rows, left_out, options))
    return 0 if rows and all(r.get("right", r["model"] == "tiny") for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
