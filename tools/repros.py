"""Runs the programs of tests/repros, each of which shows a fault that was mended (or a documented limit), and prints a
table of what holds.

    python tools/repros.py                # all of them, two at a time
    python tools/repros.py clamp_nan lock # these
    python tools/repros.py --serve        # for tests: a name a line in, an outcome a line out, as JSON

A program asserts what its docstring says and exits with 0 if it holds. It runs in a forked child of this process, which
has imported torch and flashover once, with a cache folder of its own. Lines near its top say what it needs:

    # process: fresh         a process of its own (an environment that must stand before the import)
    # limit: 300             seconds instead of 120
    # needs: tqdm, mypy      left out, and said so, where such a module is missing
    # open: docs/limits.md   a documented limit: it must fail, and the page must name it as `repros/NAME`
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "repros"
HEAD_LINES = 30  # settings stand within so many lines of the top


@dataclass(frozen=True)
class Program:
    """One program and what its head says of how to run it."""

    path: Path
    fresh: bool = False
    limit: float = 120.0
    needs: tuple[str, ...] = ()
    open_page: str = ""

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass(frozen=True)
class Outcome:
    """How a program ended: `verdict` is one of ok, FAILED, open, left out; FAILED alone is an error."""

    name: str
    verdict: str
    seconds: float
    detail: str = ""


def read(path: Path) -> Program:
    """The program at `path` with the settings of its head."""
    head = path.read_text().splitlines()[:HEAD_LINES]
    found = dict(m.groups() for line in head if (m := re.match(r"# (process|limit|needs|open): *(.+?) *$", line)))
    return Program(
        path,
        found.get("process") == "fresh",
        float(found.get("limit", 120)),
        tuple(n.strip() for n in found.get("needs", "").split(",") if n.strip()),
        found.get("open", ""),
    )


def programs() -> list[Program]:
    """All programs, by name; files that start with an underscore are helpers of theirs."""
    return [read(p) for p in sorted(FOLDER.glob("*.py")) if not p.name.startswith("_")]


def _run_forked(program: Program, log: Path) -> int:
    """Runs the program in a child of this process, which leads a process group; the child's id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        out = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.argv = [str(program.path)]
        sys.path.insert(0, str(FOLDER))
        runpy.run_path(str(program.path), run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, limit: float) -> int | None:
    """The exit code of a child (negative: a signal's number), None where it ran past `limit` seconds and was killed."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _execute(program: Program, folder: Path) -> tuple[int | None, str]:
    """Exit code (None: past its limit) and the end of what the program wrote."""
    log = folder / "log"
    if program.fresh:
        with log.open("wb") as out:
            child = subprocess.Popen(
                [sys.executable, str(program.path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=folder,
                start_new_session=True,
            )
            child.returncode = 0  # _wait reaps it
            code = _wait(child.pid, program.limit)
    else:
        code = _wait(_run_forked(program, log), program.limit)
    return code, log.read_text(errors="replace")[-4000:] if log.exists() else ""


def run(program: Program) -> Outcome:
    """Runs one program with folders of its own and judges it."""
    missing = [n for n in program.needs if importlib.util.find_spec(n) is None]
    if missing:
        return Outcome(program.name, "left out", 0.0, f"not installed here: {', '.join(missing)}")
    folder = Path(tempfile.mkdtemp(prefix="flashover-repro-"))
    before = {k: os.environ.get(k) for k in ("FLASHOVER_CACHE_DIR", "TMPDIR", "REPRO_SCRATCH")}
    os.environ.update(FLASHOVER_CACHE_DIR=str(folder / "cache"), TMPDIR=str(folder), REPRO_SCRATCH=str(folder))
    tempfile.tempdir = None  # reads TMPDIR again
    started = time.monotonic()
    try:
        code, text = _execute(program, folder)
    finally:
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.__setitem__(key, value)
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)
    return judge(program, code, text, time.monotonic() - started)


def judge(program: Program, code: int | None, text: str, seconds: float) -> Outcome:
    """What an exit code (None: past its limit) means for this program."""
    said = f"no end after {program.limit:g} s\n{text}" if code is None else f"exit code {code}\n{text}"
    if not program.open_page:
        return Outcome(program.name, "ok" if code == 0 else "FAILED", seconds, "" if code == 0 else said)
    page = ROOT / program.open_page
    if not page.exists() or f"repros/{program.name}" not in page.read_text():
        return Outcome(program.name, "FAILED", seconds, f"{program.open_page} does not name repros/{program.name}")
    if code == 0:
        return Outcome(program.name, "FAILED", seconds, f"it holds now: take it out of {program.open_page}")
    return Outcome(program.name, "open", seconds, program.open_page)


def serve() -> int:
    """Runs the programs whose paths come in, one a line, until the input ends. This process has run no parallel region
    when it forks: a child of one that has would wait forever for the threads of its parent."""
    for line in sys.stdin:
        print(json.dumps(asdict(run(read(Path(line.strip()))))), flush=True)
    return 0


def main() -> int:
    """Prints one line a program; the exit code says whether any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs to run (all)")
    parser.add_argument("--serve", action="store_true", help="for tests: run the paths on standard input")
    arguments = parser.parse_args()
    chosen = arguments.names
    listed = programs()
    unknown = sorted(set(chosen) - {p.name for p in listed})
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}")
    sys.path.insert(0, str(ROOT / "python"))
    import flashover  # noqa: F401 - the children's, once

    if arguments.serve:
        return serve()
    failed = 0
    for program in listed:
        if chosen and program.name not in chosen:
            continue
        outcome = run(program)
        failed += outcome.verdict == "FAILED"
        first = outcome.detail if outcome.verdict in ("open", "left out") else ""
        print(f"{outcome.name:40} {outcome.verdict:9} {outcome.seconds:6.1f} s  {first}", flush=True)
        if outcome.verdict == "FAILED":
            print("    " + outcome.detail.strip().replace("\n", "\n    "), flush=True)
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
