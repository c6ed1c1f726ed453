"""Runs the generators of tests/fuzz side by side on many cores, each process with its own seeds, within a time limit.

    python tools/fuzz.py --seconds 300 --jobs 16                # every generator, the cores shared out evenly
    python tools/fuzz.py --seconds 300 --jobs 16 state:10 guards:6   # processes for each

Every process runs `tests/fuzz/fuzz_NAME.py --seconds S --start SEED` with one thread and a cache folder of its own, and
writes to build/fuzz/NAME-K.log. Its last line is its count. What those wrote that found something (exit code not 0) is
put into $OUT/found.txt (build/fuzz without OUT), and the lines that name a seed are printed. The exit code says whether
any process found something."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEEDS_APART = 1_000_000  # between the first seeds of two processes
SEEDS_SHOWN, WRITTEN = 6, 200_000  # lines printed of a process that found something; characters kept of it
GRACE = 90  # seconds that a process may take to end the program it is at


@dataclass
class Job:
    """One process of one generator."""

    name: str
    number: int
    log: Path
    process: subprocess.Popen[bytes]

    def last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "(wrote nothing)"


def generators() -> list[str]:
    """The names of all of them."""
    return sorted(p.stem.removeprefix("fuzz_") for p in (ROOT / "tests" / "fuzz").glob("fuzz_*.py"))


def shares(wanted: list[str], jobs: int) -> dict[str, int]:
    """How many processes each generator gets: what was asked for, or `jobs` dealt out evenly."""
    asked = dict(([*w.split(":"), "0"])[:2] for w in wanted) or dict.fromkeys(generators(), "0")
    fixed = {name: int(n) for name, n in asked.items() if int(n)}
    rest = [name for name in asked if name not in fixed]
    left = max(jobs - sum(fixed.values()), len(rest))
    return fixed | {name: left // len(rest) + (i < left % len(rest)) for i, name in enumerate(rest)}


def start(name: str, number: int, seed: int, seconds: float, folder: Path) -> Job:
    """Starts one process."""
    log = folder / f"{name}-{number}.log"
    scratch = tempfile.mkdtemp(prefix=f"flashover-fuzz-{name}-")
    env = dict(
        os.environ,
        FLASHOVER_CACHE_DIR=f"{scratch}/cache",
        TMPDIR=scratch,
        OMP_NUM_THREADS="1",
        PYTHONUNBUFFERED="1",
    )
    command = [
        sys.executable,
        "-W",
        "ignore::UserWarning",
        f"tests/fuzz/fuzz_{name}.py",
        "--seconds",
        f"{seconds:g}",
        "--start",
        str(seed),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    return Job(name, number, log, process)


def finish(job: Job, end: float, found: Path) -> bool:
    """Waits for a process until `end` (time.monotonic()), prints its count and, where it found something, its seeds;
    all that such a process wrote is added to the file `found`."""
    try:
        code = job.process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        job.process.kill()
        code = job.process.wait()
    print(f"{job.name}-{job.number}: exit code {code}: {job.last_line()[:300]}", flush=True)
    if code:
        text = job.log.read_text(errors="replace")
        seeds = [line for line in text.splitlines() if line.startswith("seed ")][:SEEDS_SHOWN]
        print("".join(f"    {line[:200]}\n" for line in seeds or text[-1500:].splitlines()), end="", flush=True)
        with found.open("a") as out:
            out.write(f"==== {job.name}-{job.number}: exit code {code}\n{text[-WRITTEN:]}\n")
    return code != 0


def main() -> int:
    """Runs all of them and says how many found something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="NAME or NAME:PROCESSES (all)")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--start", type=int, default=int(time.time()) % 10**5 * 100 * SEEDS_APART)
    options = parser.parse_args()
    unknown = sorted({w.split(":")[0] for w in options.what} - set(generators()))
    if unknown:
        parser.error(f"no such generator: {', '.join(unknown)}; there are {', '.join(generators())}")
    folder = ROOT / "build" / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    report = Path(os.environ.get("OUT", folder)) / "found.txt"
    report.unlink(missing_ok=True)
    end = time.monotonic() + options.seconds + GRACE
    jobs: list[Job] = []
    for name, n in shares(options.what, options.jobs).items():
        for k in range(n):
            jobs.append(start(name, k, options.start + len(jobs) * SEEDS_APART, options.seconds, folder))
    found = [job for job in jobs if finish(job, end, report)]
    print(f"{len(jobs)} processes, {len(found)} of them found something")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
