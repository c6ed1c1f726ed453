"""Faults put into the compiled code of programs of 1,000 operators: the option crosscheck names the line in how many
runs, the minifier writes a script of how many operators, and how long does each take?

    python benchmarks/injected_faults.py                   # a table: one row per kind of program, and what was not found
    python benchmarks/injected_faults.py --faults 8 --seed 3 --only training

One run is one process, started until the error comes. A wrong number counts as found if the error names the line of the
operator with the fault in it; a crash or a failure to compile if the minifier does. The script is run again: with the
fault it must fail, without it must not. tests/support/fault_programs.py says what the faults are.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import fault_programs as injected  # noqa: E402

PROGRAMS: dict[str, dict[str, object]] = {
    "inference": {},
    "sizes that are symbols": {"dynamic": True},
    "training": {"training": True},
    "three breaks, four writes to an input": {"breaks": 3, "writes": 4},
    "training, symbols, three breaks": {"training": True, "dynamic": True, "breaks": 3},
}


NO_DIFFERENCE, TRIES = "no difference", 4


@dataclass
class Outcome:
    named: list[bool] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    minified: list[bool] = field(default_factory=list)
    minify_seconds: list[float] = field(default_factory=list)
    operators: list[int] = field(default_factory=list)
    unseen: int = 0  # faults that change no result


def run(command: list[str], env: dict[str, str], limit: float = 300) -> tuple[int, str, float]:
    start = time.perf_counter()
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return 1, "no end", limit
    return done.returncode, done.stdout + done.stderr, time.perf_counter() - start


def one(kind: str, seed: int, into: Outcome, minify: bool) -> None:
    """A fault that changes a result: those that do not are counted, and another operator is tried."""
    rng = random.Random(seed)
    for _ in range(TRIES):
        said = once(kind, seed, rng, into, minify)
        if said:
            print(f"  {said}", file=sys.stderr, flush=True)
        if not said.endswith(NO_DIFFERENCE):
            return


def once(kind: str, seed: int, rng: random.Random, into: Outcome, minify: bool) -> str:
    """What was not as it should be."""
    options = PROGRAMS[kind]
    faults = [f for f in injected.FAULTS if f.training <= bool(options.get("training"))]
    fault = faults[seed % len(faults)]
    plain = injected.make_program(seed, **options)  # type: ignore[arg-type]
    site = rng.choice(plain.of(*fault.operators))
    with tempfile.TemporaryDirectory(prefix="flashover-faults-") as name:
        folder = Path(name)
        env = os.environ | injected.environment(folder, fault, site)
        where = f"seed {seed}, {fault.name}, {site.operator} at line {site.line}"
        file = folder / "program.py"
        if fault.kind == "wrong":
            checked = injected.make_program(seed, crosscheck=1, **options)  # type: ignore[arg-type]
            file.write_text(checked.text)
            status, said, seconds = run([sys.executable, str(file)], env)
            if not status:
                into.unseen += 1
                return f"{where}: {NO_DIFFERENCE}"
            named = f"program.py:{site.line}" in said.splitlines()[-1]
            into.named.append(named)
            into.seconds.append(seconds)
            if not named:
                return f"{where}: {said.splitlines()[-1][:300]}"
        if not minify:
            return ""
        file.write_text(plain.text)
        command = [sys.executable, "-m", "flashover", "minify", "-o", str(folder / "repro.py"), str(file)]
        status, said, seconds = run(command, env)
        found = re.search(r"repro.py: (\d+) operator", said)
        right = found is not None and f"program.py:{site.line}" in said
        into.minified.append(right)
        into.minify_seconds.append(seconds)
        if not right or not found:
            return f"{where}: minify: {said.splitlines()[-1][:300]}"
        into.operators.append(int(found[1]))
        print(f"  {where}: {said.splitlines()[-1]}", file=sys.stderr, flush=True)
        script = [sys.executable, str(folder / "repro.py")]
        faulty, *_ = run(script, env)
        sound, text, _ = run(script, os.environ | injected.environment(folder / "sound", None, None))
        if not faulty or sound:
            into.minified[-1] = False
            return f"{where}: the script ends with {faulty}, without the fault with {sound}: {text[-200:]}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=8, help="of each kind of program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds of programs whose name has this")
    parser.add_argument("--no-minify", action="store_true")
    given = parser.parse_args()
    print(
        "| program | wrong numbers | named by the first run | s, median / most | minified | s, median / most | operators |"
    )
    print("|---|---|---|---|---|---|---|")
    for kind in PROGRAMS:
        if given.only not in kind:
            continue
        into = Outcome()
        for i in range(given.faults):
            one(kind, given.seed + i, into, not given.no_minify)

        def times(all_of: list[float]) -> str:
            return f"{statistics.median(all_of):.1f} / {max(all_of):.1f}" if all_of else "-"

        print(
            f"| {kind} | {len(into.named)} | {sum(into.named)} | {times(into.seconds)} | "
            f"{sum(into.minified)} of {len(into.minified)} | {times(into.minify_seconds)} | "
            f"{max(into.operators, default='-')} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
