"""The core suite (tests/matrix.txt) for pairs of Python and torch (./x matrix [pairs]; --list: all pairs there are).

A pair is named after its versions: p311t215 is Python 3.11 with torch 2.15. Each has a virtual environment, a build and
a package of its own below build/matrix (or FLASHOVER_MATRIX); what is there is used again, what is missing is made:
6 GB and some minutes of C++ for each. Without arguments: all pairs whose Python is on this machine. A table comes out,
and matrix.json beside the builds; the exit status is the number of pairs that are not green."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import asdict, dataclass
from pathlib import Path

from package_links import ROOT, pythonpath

FOLDER = Path(os.environ.get("FLASHOVER_MATRIX", ROOT / "build" / "matrix")).absolute()
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TORCHES = {  # the last release of each minor version, and the torchvision that goes with it
    "2.11": ("2.11.0", "0.26.0"),
    "2.12": ("2.12.1", "0.27.1"),
    "2.13": ("2.13.0", "0.28.0"),
    "2.14": ("2.14.1", "0.29.1"),
    "2.15": ("2.15.0", "0.29.2"),
}


@dataclass
class Pair:
    python: str
    torch: str

    @property
    def name(self) -> str:
        return f"p{self.python}t{self.torch}".replace(".", "")

    @property
    def interpreter(self) -> str | None:
        """The machine's own of this version."""
        return shutil.which(f"python{self.python}")

    @property
    def venv(self) -> Path:
        return FOLDER / "venvs" / self.name

    @property
    def build(self) -> Path:
        return FOLDER / self.name

    @property
    def package(self) -> Path:
        return self.build / "python" / "flashover"


@dataclass
class Outcome:
    pair: str
    python: str
    torch: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    problem: str = ""  # it did not come to tests

    @property
    def green(self) -> bool:
        return not self.problem and self.failed == 0 and self.passed > 0


PAIRS = {p.name: p for p in (Pair(python, torch) for python in PYTHONS for torch in TORCHES)}


def requirements(pair: Pair) -> list[str]:
    """requirements-dev.txt with this pair's torch."""
    torch, vision = TORCHES[pair.torch]
    lines = (ROOT / "requirements-dev.txt").read_text().split()
    others = [line for line in lines if not line.startswith(("torch==", "torchvision=="))]
    return [f"torch=={torch}", f"torchvision=={vision}", *others]


def make_venv(pair: Pair) -> None:
    ready = pair.venv / ".flashover-ready"
    if ready.exists():
        return
    if pair.interpreter is None:
        raise RuntimeError(f"python{pair.python} is not on PATH")
    subprocess.run([pair.interpreter, "-m", "venv", "--clear", str(pair.venv)], check=True)
    subprocess.run([pair.venv / "bin" / "pip", "install", "-q", *requirements(pair)], check=True)
    ready.touch()


def make_core(pair: Pair) -> None:
    bin_first = os.environ | {"PATH": f"{pair.venv / 'bin'}:{os.environ['PATH']}"}
    if not (pair.build / "build.ninja").exists():
        settings = [f"-DFLASHOVER_PYTHON={pair.venv / 'bin' / 'python'}", f"-DFLASHOVER_PACKAGE={pair.package}"]
        configure = ["cmake", "--preset", "dev", "-S", str(ROOT), "-B", str(pair.build), "-G", "Ninja", *settings]
        subprocess.run([*configure, "-DFLASHOVER_TESTS=OFF"], check=True, env=bin_first, stdout=subprocess.DEVNULL)
    jobs = os.environ.get("FLASHOVER_JOBS", str(os.cpu_count()))
    subprocess.run(["cmake", "--build", str(pair.build), "-j", jobs, "--target", "_C"], check=True, env=bin_first)


def targets() -> list[str]:
    listed = [line.partition("#")[0].strip() for line in (ROOT / "tests" / "matrix.txt").read_text().splitlines()]
    return [line for line in listed if line]


def counts(report: Path) -> dict[str, int]:
    suite = ET.parse(report).getroot().find("testsuite")
    if suite is None:
        raise RuntimeError("pytest wrote no report")
    tests, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return {"passed": tests - failed - skipped, "failed": failed, "skipped": skipped}


def run_tests(pair: Pair, jobs: int) -> dict[str, int]:
    report = pair.build / "matrix.xml"
    report.unlink(missing_ok=True)
    path = pythonpath(pair.package)
    parallel = ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
    options = ["-q", "-o", f"pythonpath={' '.join(path)}", f"--junitxml={report}", *parallel]
    environment = os.environ | {"PYTHONPATH": path[0], "PATH": f"{pair.venv / 'bin'}:{os.environ['PATH']}"}
    python = str(pair.venv / "bin" / "python")
    subprocess.run([python, "-m", "pytest", *options, *targets()], cwd=ROOT, env=environment, check=False)
    return counts(report)


def try_pair(pair: Pair, jobs: int, built: bool) -> Outcome:
    outcome = Outcome(pair.name, pair.python, TORCHES[pair.torch][0])
    try:
        if not built:
            make_venv(pair)
            make_core(pair)
        for what, number in run_tests(pair, jobs).items():
            setattr(outcome, what, number)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        outcome.problem = str(error)
    return outcome


def table(outcomes: list[Outcome]) -> str:
    rows = [f"| Python | torch | passed | failed | skipped | ({datetime.date.today()}) |", "|---|---|---|---|---|---|"]
    for o in outcomes:
        word = "green" if o.green else o.problem or "not green"
        rows.append(f"| {o.python} | {o.torch} | {o.passed} | {o.failed} | {o.skipped} | {word} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./x matrix", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pairs", nargs="*", metavar="pair", help="p311t215 ...; all that this machine can hold")
    parser.add_argument("--list", action="store_true", help="the pairs, and whether this machine has what they need")
    parser.add_argument("--jobs", type=int, default=1, help="processes of pytest")
    parser.add_argument("--built", action="store_true", help="test what is there; install and build nothing")
    given = parser.parse_args()
    if unknown := [name for name in given.pairs if name not in PAIRS]:
        parser.error(f"unknown pair {unknown[0]!r}; there are: {' '.join(PAIRS)}")
    if given.list:
        for pair in PAIRS.values():
            print(
                pair.name, "made" if (pair.venv / ".flashover-ready").exists() else pair.interpreter or "no interpreter"
            )
        return 0
    chosen = [PAIRS[name] for name in given.pairs] or [
        p for p in PAIRS.values() if p.interpreter or (p.venv / ".flashover-ready").exists()
    ]
    outcomes = []
    for pair in chosen:
        print(f"matrix: {pair.name}", flush=True)
        outcomes.append(try_pair(pair, given.jobs, given.built))
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / "matrix.json").write_text(json.dumps([asdict(o) for o in outcomes], indent=1))
    print(table(outcomes))
    return sum(not o.green for o in outcomes)


if __name__ == "__main__":
    sys.exit(main())
