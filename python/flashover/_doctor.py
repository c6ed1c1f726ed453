"""The doctor: runs a program, ranks what costs it time, and patches its source where a rewrite is plain to see."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

import flashover
from flashover import _patches, _report, _reporting
from flashover._patches import Patch, patch_for
from flashover._reasons import reason_of, recompile_reason_of
from flashover._script import run_program
from flashover._summary import count, duration, short, source_line

_CALLS = 2000


@dataclass
class Finding:
    """One line of the program that costs time, and what it cost in this run."""

    kind: str  # "graph break", "compiled again", "ran eager"
    name: str  # of the callable
    where: str
    title: str
    details: str
    hints: tuple[str, ...]
    times: int
    seconds: float | None  # None: what it lost is not known
    patch: Patch | None = None


def break_cost() -> float:
    """Seconds that a graph break takes each time, on this machine: the same function with one and without."""

    def whole(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def cut(x: torch.Tensor) -> torch.Tensor:
        flashover.graph_break()
        return x + 1

    x, least = torch.zeros(1), []
    with torch.no_grad(), flashover.set_stance("default"):
        for f in (whole, cut):
            fast = flashover.compile(f, options={"cache": False, "eager_warning": False}, backend="eager")
            fast(x)
            times = []
            for _ in range(5):
                start = time.perf_counter()
                for _ in range(_CALLS // 5):
                    fast(x)
                times.append((time.perf_counter() - start) / (_CALLS // 5))
            least.append(min(times))
    return max(least[1] - least[0], 0.0)


def findings(collected: _reporting.Collected, each_break: float) -> list[Finding]:
    """What a run lost, the most first; what is not known by number comes last."""
    found: dict[tuple[str, str, str], Finding] = {}
    for _, e in _report.explanations(collected):
        for finding in (*_breaks(e, each_break), *_recompiles(e), *_eager(e)):
            into = found.setdefault((finding.kind, finding.where, finding.details), finding)
            if into is not finding:
                into.times += finding.times
                into.seconds = None if into.seconds is None else into.seconds + (finding.seconds or 0.0)
    ranked = sorted(found.values(), key=lambda f: (f.seconds is None, -(f.seconds or 0.0), -f.times))
    for finding in ranked:
        finding.patch = patch_for(finding.kind, finding.details, finding.where)
    return ranked


def _breaks(e: Any, each_break: float) -> Iterator[Finding]:
    for b in e.breaks:
        row = reason_of(b["reason"])
        lost = b["seconds"] + b["count"] * each_break
        yield Finding("graph break", e.name, b["where"], row.title, b["reason"], row.hints, b["count"], lost)


def _recompiles(e: Any) -> Iterator[Finding]:
    for r in e.recompiles:
        m = r["missed"][-1]
        details = m["guard"] + (f"; now {m['now']}" if m["now"] else "")
        row = recompile_reason_of(details)
        hints = (m["advice"], *row.hints) if m["advice"] else row.hints
        yield Finding(
            "compiled again", e.name, m["where"] or r["called"], row.title, details,
            hints, 1, r["seconds"],
        )  # fmt: skip


def _eager(e: Any) -> Iterator[Finding]:
    for x in e.eager:
        if x["cause"] in ("requested", "timed"):
            continue
        row = reason_of(x["reason"])
        yield Finding("ran eager", e.name, x["where"], row.title, x["reason"], row.hints, x["count"], None)


def lines(found: list[Finding], each_break: float) -> Iterator[str]:
    if not found:
        yield "Nothing breaks, nothing was compiled again, nothing ran eager."
        return
    lost = sum(f.seconds or 0.0 for f in found)
    each = f"a graph break takes {duration(each_break)} each time here"
    yield f"{count(len(found), 'finding')}, {duration(lost)} lost ({each})"
    for i, f in enumerate(found, 1):
        cost = "not measured" if f.seconds is None else duration(f.seconds)
        yield f"{i}. {cost}: {f.kind}, {count(f.times, 'time')}, in {f.name}: {f.title}"
        if f.where:
            yield f"   {short(f.where)}: {source_line(f.where)}"
        yield f"   {f.details}"
        yield from (f"   -> {hint}" for hint in f.hints[:2])
        if f.patch:
            yield f"   {f.patch.says}"
            yield from (f"   | {line}" for line in f.patch.diff.splitlines())


def doctor(given: argparse.Namespace) -> int:
    each_break = break_cost()
    collected = _reporting.start(keep_text=False)
    status = run_program(given.script, given.arguments)
    _reporting.stop()
    found = findings(collected, each_break)
    print("\n".join(lines(found, each_break)))
    if given.patch:
        patches = _patches.merged([f.patch for f in found if f.patch])
        with open(given.patch, "w", encoding="utf-8") as file:
            file.write(patches)
        print(f"patches are in {given.patch}: patch -p0 < {given.patch}", file=sys.stderr)
    return status
