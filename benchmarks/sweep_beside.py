"""The capture sweep beside torch.compile's, in one run: every architecture of sweep_models through both captures alone.

    python benchmarks/sweep_beside.py --json $OUT/beside.jsonl --seconds 280      # a process a core; ends in time, keeps what is done
    python benchmarks/sweep_beside.py --json beside.jsonl --markdown docs/benchmarks/sweep-beside.md --seconds 0   # the table of what is there

Both sides run with backend="eager": the captured graph is run operator by operator, so what is measured is the capture. Each
is asked for one graph first (fullgraph=True); where it declines, it is run again with breaks, which are counted (torch.compile:
torch._dynamo's own counters). Seconds: the first call less a later one, of the way that gave the result. A process forked for
each model from one that has everything imported and has captured once, with a limit of time; a row is written when it is done,
as a line of JSON.
"""

# ruff: noqa: E402 (the clock starts before the long imports)
from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

START = time.monotonic()  # importing torch and transformers on a fresh machine takes half a minute
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch

sys.path.insert(0, str(Path(__file__).parent))
import sweep
import sweep_models

import flashover

SIDES = ("flashover", "torch.compile")
Key = tuple[str, str]


def compiled(side: str, model: Any, fullgraph: bool) -> Any:
    if side == "flashover":
        flashover.reset()
        return flashover.compile(model, backend="eager", fullgraph=fullgraph)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(model, backend="eager", fullgraph=fullgraph)


def breaks(side: str) -> int:
    if side == "flashover":
        return int(flashover.compile_stats()["graph_breaks"])
    return int(sum(torch._dynamo.utils.counters["graph_break"].values()))


def one_side(side: str, model: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"precision": "fp32"}
    other = SIDES[1 - SIDES.index(side)]
    for fullgraph in (True, False):
        before = breaks(side)
        fast = compiled(side, model, fullgraph)
        try:
            start = time.perf_counter()
            sweep.outputs(fast, args, kwargs)
            first = time.perf_counter() - start
            start = time.perf_counter()
            sweep.outputs(fast, args, kwargs)
            row["seconds"] = max(first - (time.perf_counter() - start), 0.0)
        except Exception as failure:
            text = f"{type(failure).__name__}: {failure}".strip()
            if fullgraph:
                row["reason"] = text[:400]
                continue
            return row | {"status": "CRASH", "reason": text[:400]}
        row["status"] = "whole" if fullgraph else "breaks"
        row["breaks"] = 0 if fullgraph else breaks(side) - (before if side == "flashover" else 0)
        reason = row.get("reason")
        sweep.compare(row, fast, model, args, kwargs, lambda: compiled(other, model, False))
        if reason and row["status"] == "breaks":
            row["reason"] = reason
        break
    return row


def one_model(kind: str, name: str, write: Any) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        with torch.no_grad():
            model, args, kwargs = sweep_models.make(kind, name)
        sweep.outputs(model, args, kwargs)
    except BaseException as failure:
        write({"side": "eager", "status": "not built", "reason": f"{type(failure).__name__}: {failure}"[:160]})
        return
    write({"side": "eager", "status": "runs"})
    for side in SIDES:
        write({"side": side} | one_side(side, model, args, kwargs))


def capture_once() -> None:
    """What a process pays once (lazy imports, first use) is paid before the forks."""
    layer = torch.nn.Linear(2, 2).eval()
    for side in SIDES:
        for fullgraph in (True, False):
            sweep.outputs(compiled(side, layer, fullgraph), (torch.ones(1, 2),), {})


def spawn(kind: str, name: str, file: Path) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.setpgid(0, 0)
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1), os.dup2(devnull, 2)
        with file.open("a") as out:

            def write(row: dict[str, Any]) -> None:
                out.write(json.dumps({"kind": kind, "model": name} | row) + "\n")
                out.flush()

            one_model(kind, name, write)
    finally:
        os._exit(0)


def run_all(cases: list[Key], file: Path, jobs: int, limit: float, end: float) -> None:
    """At most `jobs` children at once; one that takes longer than `limit`, and at the end all that run, are killed."""
    running: dict[int, tuple[Key, float]] = {}
    waiting = list(reversed(cases))
    while (waiting or running) and time.monotonic() < end:
        while waiting and len(running) < jobs:
            case = waiting.pop()
            running[spawn(*case, file)] = (case, time.monotonic())
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in running:
            (kind, name), since = running.pop(pid)
            if status and since < math.inf:
                died(file, kind, name, f"died, wait status {status}")
            continue
        for pid, (case, since) in running.items():
            if time.monotonic() - since > limit:
                died(file, *case, f"over {limit:.0f} s")
                running[pid] = (case, math.inf)
                kill(pid)
        time.sleep(0.02)
    for pid in running:
        kill(pid)
    for pid in running:
        os.waitpid(pid, 0)


def kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # not its own group yet
        os.kill(pid, signal.SIGKILL)


def died(file: Path, kind: str, name: str, reason: str) -> None:
    with file.open("a") as out:
        out.write(json.dumps({"kind": kind, "model": name, "side": "end", "reason": reason}) + "\n")


def read(file: Path) -> dict[Key, dict[str, dict[str, Any]]]:
    """What is known of each model, by side. What a model died of is said of the side that it was at."""
    rows: dict[Key, dict[str, dict[str, Any]]] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        rows.setdefault((row["kind"], row["model"]), {}).setdefault(row["side"], row)
    for sides in rows.values():
        if "end" in sides and "eager" in sides:
            at = next((s for s in SIDES if s not in sides), None)
            if at:
                reason = sides["end"]["reason"]
                sides[at] = {"status": "over time" if reason.startswith("over") else "CRASH", "reason": reason}
    return rows


def table(rows: dict[Key, dict[str, dict[str, Any]]], limit: float) -> str:
    both = {k: v for k, v in rows.items() if all(s in v for s in SIDES)}
    ran = sum(v.get("eager", {}).get("status") == "runs" for v in rows.values())
    out = [
        f"torch {torch.__version__}, {time.strftime('%Y-%m-%d')}: {len(both)} architectures were captured by both within the time "
        f"({ran} run in eager). Seconds of capture: geometric mean over those that both capture whole.",
        "",
        f"| | equal to eager | whole | with breaks | breaks in all | fails | over {limit:.0f} s | seconds of capture |",
        "|---|---|---|---|---|---|---|---|",
    ]
    whole = [v for v in both.values() if all(v[s]["status"] == "whole" for s in SIDES)]
    for side in SIDES:
        mine = [v[side] for v in both.values()]
        count = {s: sum(r["status"] == s for r in mine) for s in ("whole", "breaks", "WRONG", "CRASH", "over time")}
        equal = sum(sweep.is_equal(r) != "NO" for r in mine)
        mean = math.exp(statistics.fmean(math.log(max(v[side]["seconds"], 1e-4)) for v in whole)) if whole else math.nan
        out.append(
            f"| {side} | {equal} of {len(mine) - count['over time']} | {count['whole']} ({100 * count['whole'] / max(len(mine), 1):.1f} %) | {count['breaks']} "
            f"| {sum(r.get('breaks', 0) for r in mine)} | {count['CRASH'] + count['WRONG']} | {count['over time']} | {mean:.3f} |"
        )
    out += ["", "Not whole in one of them, or not equal (equal, graph breaks, reason of the first):", ""]
    out += ["| architecture | flashover | torch.compile | reasons |", "|---|---|---|---|"]
    for (kind, name), v in sorted(both.items()):
        if all(v[s]["status"] == "whole" and sweep.is_equal(v[s]) == "yes" for s in SIDES):
            continue
        reasons = "; ".join(f"{s}: {short(v[s]['reason'])}" for s in SIDES if v[s].get("reason"))
        out.append(f"| {kind}/{name} | {cell(v[SIDES[0]])} | {cell(v[SIDES[1]])} | {reasons} |")
    out += ["", "All others: whole and equal in both. Seconds of capture, flashover / torch.compile:", ""]
    out.append(
        ", ".join(
            f"{name} {v[SIDES[0]]['seconds']:.2f}/{v[SIDES[1]]['seconds']:.1f}"
            for (_, name), v in sorted(both.items())
            if all(v[s]["status"] == "whole" and sweep.is_equal(v[s]) == "yes" for s in SIDES)
        )
    )
    return "\n".join(out) + "\n"


def short(reason: str) -> str:
    words = re.sub(r"\S*site-packages/|^Unsupported: ", "", reason.split("\n  Hint")[0])
    return " ".join(words.replace("|", "/").split())[:140]


def cell(row: dict[str, Any]) -> str:
    graphs = {"whole": "whole", "breaks": f"{row.get('breaks', 0)} breaks"}.get(row["status"], row["status"])
    equal = sweep.is_equal(row) if row["status"] in ("whole", "breaks", "WRONG") else "-"
    return f"{equal}, {graphs}" + (f", {row['seconds']:.2f} s" if "seconds" in row else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="lines are added; models that have some are left out")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--only", default="", help="comma list of exact names")
    parser.add_argument(
        "--kind", default="transformers,torchvision,timm", help="in this order; heads of transformers last"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=60, help="seconds a model")
    parser.add_argument("--seconds", type=float, default=280, help="seconds in all, imports too")
    options = parser.parse_args()
    end = START + options.seconds
    options.json.touch()
    if options.seconds > 0:
        import torch._dynamo  # noqa: F401
        import transformers.models.auto.modeling_auto  # noqa: F401  before the forks

        capture_once()
        kinds = options.kind.split(",")
        done = {
            k
            for k, v in read(options.json).items()
            if "end" in v or SIDES[1] in v or v["eager"]["status"] == "not built"
        }
        cases = [c for c in sweep_models.cases() if c[0] in kinds and c not in done]
        if options.only:
            cases = [c for c in cases if c[1] in options.only.split(",")]
        cases.sort(key=lambda c: (":" in c[1], kinds.index(c[0])))
        run_all(cases, options.json, options.jobs, options.limit, end)
    rows = read(options.json)
    print(f"{len(rows)} models, {sum(SIDES[1] in v for v in rows.values())} with both sides")
    if options.markdown:
        options.markdown.write_text(table(rows, options.limit))
    return 0


if __name__ == "__main__":
    sys.exit(main())
