"""compute-sanitizer's memcheck over the whole of tests/gpu, in many processes, within a time limit.

    ./x device sanitize                       # all tests, 14 processes, 250 s
    ./x device sanitize --seconds 120 -k pool # more arguments go to pytest

Every process is a pytest of its own under a sanitizer of its own (never of the compile workers, which touch no GPU) and
takes the next test that nobody has taken, so a slow test holds up nothing. Tests that record CUDA graphs need torch's
caching allocator (a recording's memory is a pool of it); all others run without it, so that every tensor is an
allocation whose ends the tool knows. Tests marked `unsanitized` look at the clock, provoke errors of CUDA, have many
threads (which the tool makes very slow) or use CUPTI, which it also uses: they are left out. A process that died, or
whose context did, is replaced. At the limit what runs is ended and named. Logs: build/sanitize, and all of them in
$OUT/sanitize.log where OUT is set."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "FLASHOVER_SANITIZE_FOLDER"
GRAPHS = re.compile(r"graph|reduce-overhead|max-autotune(?!-no-cudagraphs)")
# Cheap files first, models last: what the limit cuts off is then the fewest tests. Files not named come in between.
FIRST, LAST = ["programs", "launch", "places", "optimizers", "training"], ["training_graphs", "autotune", "models"]
DEAD = re.compile(r"CUDA error|illegal memory access|unspecified launch failure|device-side assert")


def test_files() -> list[str]:
    every = {f.stem.removeprefix("test_gpu_"): f for f in sorted((ROOT / "tests" / "gpu").glob("test_gpu_*.py"))}
    between = [name for name in every if name not in FIRST + LAST]
    return [str(every[name].relative_to(ROOT)) for name in FIRST + between + LAST if name in every]


class Claims:
    """The pytest plugin inside each process: runs the tests that it is first to claim, until the limit."""

    def __init__(self, folder: Path, graphs: bool, until: float) -> None:
        self.folder, self.graphs, self.until = folder, graphs, until
        self.outcome: list[str] = []
        self.dead = False

    def claim(self, index: int, name: str) -> bool:
        try:
            descriptor = os.open(self.folder / f"{index}.taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w") as f:
            f.write(f"{name}\n{os.getpid()}\n")
        return True

    def pytest_runtestloop(self, session: Any) -> bool:
        if session.config.option.collectonly:
            return True
        for index, item in enumerate(session.items):
            if "unsanitized" in item.keywords or bool(GRAPHS.search(item.nodeid)) != self.graphs:
                continue
            if self.dead or time.time() > self.until:
                break
            if self.claim(index, item.nodeid):
                self.outcome.clear()
                start = time.time()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                what = next((o for o in ("failed", "skipped") if o in self.outcome), "passed")
                (self.folder / f"{index}.done").write_text(f"{what}\n{time.time() - start:.1f}\n{item.nodeid}\n")
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.outcome.append(report.outcome)
        self.dead |= report.failed and bool(DEAD.search(str(report.longrepr)))


def pytest_configure(config: Any) -> None:
    folder = os.environ[FOLDER]
    graphs, until = os.environ["FLASHOVER_SANITIZE_GRAPHS"] == "1", float(os.environ["FLASHOVER_SANITIZE_UNTIL"])
    config.pluginmanager.register(Claims(Path(folder), graphs, until))


def start(tool: str, folder: Path, number: int, graphs: bool, until: float, extra: list[str]) -> subprocess.Popen[Any]:
    env = dict(os.environ)
    env |= {FOLDER: str(folder), "FLASHOVER_SANITIZE_UNTIL": str(until), "FLASHOVER_SANITIZE_GRAPHS": str(int(graphs))}
    env["PYTHONPATH"] = f"{ROOT / 'tools'}{os.pathsep}{env.get('PYTHONPATH', '')}"
    if not graphs:
        env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    given = [a for a in extra if a.startswith("tests/")]
    command = [tool, "--tool", "memcheck", "--target-processes", "application-only", "--error-exitcode", "9"]
    command += ["--log-file", str(folder / f"memcheck-{number}.log"), sys.executable, "-m", "pytest", "-q", "-rf"]
    command += ["-p", "sanitize", "-p", "no:cacheprovider", "-p", "no:benchmark", "-o", "timeout=200"]
    command += (given or test_files()) + [a for a in extra if a not in given]
    with (folder / f"tests-{number}.log").open("w") as log:
        return subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=env
        )


def end(processes: list[subprocess.Popen[Any]]) -> None:
    for sign, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
        for p in processes:
            if p.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(p.pid, sign)
        until = time.time() + patience
        while time.time() < until and any(p.poll() is None for p in processes):
            time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=250)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--tool", default="compute-sanitizer")
    options, extra = parser.parse_known_args()
    tool = shutil.which(options.tool)
    if not tool:
        print("compute-sanitizer is not on PATH (it comes with the CUDA toolkit)")
        return 2
    begun = time.time()
    until = begun + options.seconds
    folder = ROOT / "build" / "sanitize"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # A third records graphs. Nobody takes a new test in the last tenth.
    last = until - options.seconds / 10
    recording = max(options.processes // 3, 1)
    kinds = [False] * max(options.processes - recording, 1) + [True] * recording
    everyone = [start(tool, folder, i, graphs, last, extra) for i, graphs in enumerate(kinds)]
    running = dict(enumerate(everyone))
    codes: Counter[int] = Counter()
    while running and time.time() < until:
        time.sleep(0.1)
        for i, p in list(running.items()):
            if p.poll() is None:
                continue
            del running[i]
            codes[p.returncode] += 1
            lost = "CUDA error" in (folder / f"tests-{i}.log").read_text(errors="replace")
            if (
                (lost or p.returncode not in (0, 1, 5, 9))
                and time.time() < last
                and len(everyone) < 3 * options.processes
            ):
                kinds.append(kinds[i])
                everyone.append(start(tool, folder, len(everyone), kinds[i], last, extra))
                running[len(everyone) - 1] = everyone[-1]
    stopped = len(running)
    end(everyone)

    done = {p.stem: p.read_text().split("\n") for p in folder.glob("*.done")}
    unfinished = [p.read_text().split("\n")[0] for p in folder.glob("*.taken") if p.stem not in done]
    logs = [p.read_text(errors="replace") for p in sorted(folder.glob("memcheck-*.log"))]
    errors = sum(int(n) for text in logs for n in re.findall(r"ERROR SUMMARY: (\d+) error", text))
    outcomes = Counter(lines[0] for lines in done.values())
    print(
        f"{len(done)} tests in {time.time() - begun:.0f} s, {options.processes} processes "
        + f"({stopped} stopped at the limit): "
        + ", ".join(f"{n} {what}" for what, n in outcomes.most_common())
        + f"; memcheck: {errors} errors in {len(logs)} logs, exit codes {dict(codes)}"
    )
    for lines in sorted(done.values(), key=lambda lines: -float(lines[1]))[:5]:
        print(f"  {lines[1]} s  {lines[2]}")
    for lines in done.values():
        if lines[0] == "failed":
            print("failed:", lines[2])
    for name in unfinished:
        print("not ended:", name)
    for text in logs:
        found = re.search(
            r"=+ (?!COMPUTE|ERROR SUMMARY|LEAK)[^\n]*(Invalid|Program hit|Misaligned|race|out of bounds)", text
        )
        if found:
            print(text[found.start() : found.start() + 1500])
    texts = [p.read_text(errors="replace") for p in sorted(folder.glob("tests-*.log"))]
    if not done and texts:
        print(texts[0][-1500:])
    if "OUT" in os.environ:
        (Path(os.environ["OUT"]) / "sanitize.log").write_text("\n".join(logs + texts))
    return 1 if errors or unfinished or outcomes["failed"] or not done else 0


if __name__ == "__main__":
    sys.exit(main())
