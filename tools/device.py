"""One session on the device machine within a budget: GPU tests, benchmark rows, the sanitizer; logs and a summary.

    ./x device run 540                    # build, then everything that fits into 540 seconds (counted from the start)
    ./x device run 300 --phases tests     # only some of: tests, bench, sanitize
    ./x device run 400 --models bert,gpt2 --tasks training

What matters most comes first and is cut last: tests that failed last time, then tests/gpu in the
order below, then the benchmark's rows by the list, then the sanitizer (tools/sanitize.py). Everything is
written as it happens to $OUT (else build/device): summary.md, gpu.md, gpu.json and a log of each phase. A phase
that runs out of its share is stopped and says so; the next one still runs."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ["optimizers", "training", "launch", "programs", "models", "autotune"]
MODELS = "bert,llama,gpt2,resnet50,vit_base,blocks50,t5,convnext_tiny,dlrm,unet,albert"
# What a phase may take of what is left when it starts.
SHARES = {"tests": 0.45, "bench": 0.75, "sanitize": 0.9}


def run(command: list[str], log: Path, limit: float, env: dict[str, str] | None = None) -> tuple[int | None, float]:
    """Return code (None: stopped at the limit) and seconds; the command's whole family ends with it."""
    start = time.time()
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
        try:
            return process.wait(timeout=max(limit, 1)), time.time() - start
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return None, time.time() - start


def facts(pattern: str, text: str, most: int) -> list[str]:
    found = [line for line in text.splitlines() if re.search(pattern, line)]
    return found[:most] + ([f"... and {len(found) - most} more"] if len(found) > most else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("budget", type=float, nargs="?", default=540, help="seconds for everything, the build included")
    parser.add_argument("--phases", default="tests,bench,sanitize")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--tasks", default="inference,training")
    parser.add_argument(
        "--contestants", default="", help="as benchmarks/gpu.py; default: torch.compile beside flashover"
    )
    parser.add_argument("--started", type=float, default=time.time(), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "build" / "device")))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    phases = options.phases.split(",")
    summary: list[str] = []
    failed = False

    def say(*lines: str) -> None:
        summary.extend(lines)
        print(*lines, sep="\n", flush=True)
        (options.out / "summary.md").write_text("\n".join(summary) + "\n")

    def left() -> float:
        return options.budget - (time.time() - options.started)

    say(f"build took {time.time() - options.started:.0f} s, {left():.0f} s left")
    for phase in phases:
        limit = left() * (SHARES[phase] if phase != phases[-1] else 0.95)
        log = options.out / f"{phase}.log"
        if limit < 20:
            say(f"{phase}: not begun, {left():.0f} s left")
            continue
        if phase == "tests":
            files = [f"tests/gpu/test_gpu_{name}.py" for name in TESTS]
            workers = ["-n", os.environ.get("FLASHOVER_GPU_WORKERS", "6")] if shutil.which("nvidia-smi") else []
            code, took = run(
                [
                    sys.executable,
                    "-m",
                    "pytest",
                    "-q",
                    "-rf",
                    "--failed-first",
                    "--timeout",
                    "120",
                    "--durations",
                    "5",
                    *workers,
                    *files,
                ],
                log,
                limit,
            )
            text = log.read_text()
            say(f"tests: {took:.0f} s, " + (text.strip().splitlines() or ["nothing was printed"])[-1].strip("= "))
            say(*facts(r"^(FAILED|ERROR) ", text, 25))
        elif phase == "bench":
            command = [
                sys.executable,
                "benchmarks/gpu.py",
                "--limit",
                str(int(limit - 5)),
                "--models",
                options.models,
                "--tasks",
                options.tasks,
                "--seconds",
                "0.5",
                "--batch",
                "6",
                "--no-warm",
                "--json",
                str(options.out / "gpu.json"),
                "--markdown",
                str(options.out / "gpu.md"),
                "--log",
                str(options.out / "gpu.log"),
            ]
            if options.contestants:
                command += ["--contestants", options.contestants]
            code, took = run(command, log, limit)
            table = options.out / "gpu.md"
            say(
                f"bench: {took:.0f} s",
                *(table.read_text().splitlines() if table.exists() else facts(".", log.read_text(), 10)),
            )
        else:
            code, took = run(
                [sys.executable, "tools/sanitize.py", "--seconds", str(int(limit - 20))],
                log,
                limit,
                {"OUT": str(options.out)},
            )
            say(f"sanitize: {took:.0f} s", *log.read_text().splitlines()[:15])
        if code is None:
            say(f"{phase}: stopped after {took:.0f} s, see {log.name}")
        failed |= code != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
