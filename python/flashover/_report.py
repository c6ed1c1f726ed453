"""The report of a whole program: every compiled callable, without a change to the program.

FLASHOVER_REPORT=folder python train.py writes it when the process ends; the commands explain and doctor use the same.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flashover._live import Live
from flashover._page_parts import STYLE, text
from flashover._reporting import Collected, of_environment
from flashover._summary import count, duration, short, source_line, verdict


def explanations(collected: Collected) -> list[tuple[Live, Any]]:
    """Of what was called, the longest compilations first."""
    made = [(live, live.explain()) for live in map(Live, collected.callables)]
    called = [(live, e) for live, e in made if e.tallies["calls"] or e.entries]
    return sorted(called, key=lambda pair: -sum(g["seconds"] for g in pair[1].entries))


def write(collected: Collected, folder: str | Path, more: Callable[[Path], str] = lambda _: "") -> Path | None:
    """index.html, a page for each callable, report.json, events.jsonl and trace.json. None: nothing was called.
    more: what the index has besides, of files in the folder."""
    found = explanations(collected)
    if not found:
        return None
    to = Path(folder)
    written = to / "report.json"
    if written.exists() and written.stat().st_mtime > collected.started:  # another process of this run was here
        to = to / f"process-{os.getpid()}"
    to.mkdir(parents=True, exist_ok=True)
    rows = []
    for i, (live, e) in enumerate(found):
        page = f"{i:03}_{re.sub(r'[^A-Za-z0-9_]+', '_', e.name)[:60]}.html"
        e.save(to / page)
        rows.append({"name": e.name, "page": page, "verdict": verdict(e), **asdict(live.stats())} | _stops(e))
    program = " ".join(sys.argv) or sys.executable
    (to / "report.json").write_text(
        json.dumps({"program": program, "left_out": collected.left_out, "callables": rows}, indent=1), encoding="utf-8"
    )
    (to / "index.html").write_text(index_page(program, rows, collected.left_out, more(Path(folder))), encoding="utf-8")
    lines = sorted((event for _, e in found for event in events(e)), key=lambda event: event["started"])
    (to / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (to / "trace.json").write_text(json.dumps(perfetto(found)), encoding="utf-8")
    return to


def _stops(e: Any) -> dict[str, Any]:
    """Why and where graphs end, calls are compiled again and run eager."""
    keys = ("reason", "where", "count", "seconds")
    again = [
        {"reason": r["reason"], "called": r["called"], "seconds": r["seconds"], "version": r["version"]}
        for r in e.recompiles
    ]
    return {"breaks": [{k: b[k] for k in keys} for b in e.breaks], "again": again, "eager": e.eager}


def events(e: Any) -> list[dict[str, Any]]:
    """One for each compilation, as JSON lines for tools."""
    return [
        {
            "event": "compile" if g["compiled"] else "eager",
            "name": e.name,
            "version": g["version"],
            "started": g["started"],
            "seconds": g["seconds"],
            "continues": g["continues"],
            "break": {"reason": g["reason"], "where": g["where"], "stack": g["stack"].splitlines()}
            if g["breaks"] or not g["compiled"]
            else None,
            "recompiled_for": g["recompiled_for"],
            "called": g["called"],
            "kernels": g["kernels"],
            "extern_calls": g["extern_calls"],
            "cache_hit": bool(g["cache_hit"]),
            "stages": g["stages"],
        }
        for g in e.entries
    ]


def perfetto(found: list[tuple[Live, Any]]) -> dict[str, Any]:
    """When what was compiled, with the stages of the compiler in their order: ui.perfetto.dev and chrome://tracing."""
    out = []
    for _, e in found:
        for g in e.entries:
            at = g["started"] * 1e6
            common = {"ph": "X", "pid": os.getpid(), "tid": 0}
            after = f" from {short(g['continues'])}" if g["continues"] else ""
            title = f"compile {e.name}{after}, version {g['version']}"
            facts = {k: g[k] for k in ("kernels", "extern_calls", "recompiled_for", "reason", "where")}
            out.append({**common, "name": title, "ts": at, "dur": g["seconds"] * 1e6, "args": facts})
            for stage, seconds in g["stages"].items():
                out.append({**common, "name": stage, "ts": at, "dur": seconds * 1e6})
                at += seconds * 1e6
    return {"traceEvents": out, "displayTimeUnit": "ms"}


def index_page(program: str, rows: list[dict[str, Any]], left_out: int, more_parts: str = "") -> str:
    """What a browser shows first."""

    def total(key: str) -> int:
        return sum(r[key] for r in rows)

    facts = [
        count(len(rows), "callable"), count(total("calls"), "call"), count(total("graphs"), "graph"),
        count(total("graph_breaks"), "graph break"), count(total("recompiles"), "recompilation"),
        count(total("eager_calls"), "eager call"), f"{duration(sum(r['compile_seconds'] for r in rows))} of compiling",
    ]  # fmt: skip
    head = "".join(f"<th class=n>{h}</th>" for h in ("calls", "versions", "breaks", "recompiles", "eager", "compile"))
    body = "".join(
        f'<tr><td><a href="{text(r["page"])}">{text(r["name"])}</a><br>'
        f"<span class=small>{text(r['verdict'])}</span></td>"
        + "".join(
            f"<td class=n>{r[k]}</td>" for k in ("calls", "versions", "graph_breaks", "recompiles", "eager_calls")
        )
        + f"<td class=n>{duration(r['compile_seconds'])}</td></tr>"
        for r in rows
    )
    stops = "".join(
        f"<div class=warn><b>graph break</b> in {text(r['name'])}, {count(b['count'], 'time')}: {text(b['reason'])}<br>"
        f"<span class=small>{text(short(b['where']))}: {text(source_line(b['where']))}</span></div>"
        for r in rows
        for b in r["breaks"]
    ) + "".join(
        f"<div class=warn><b>compiled again</b>, {text(r['name'])}, {duration(a['seconds'])}: {text(a['reason'])}</div>"
        for r in rows
        for a in r["again"]
    )
    more = f"<p>{count(left_out, 'more callable')} not kept.</p>" if left_out else ""
    return (
        '<!doctype html><html lang=en><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>flashover: {text(program)}</title><style>{STYLE}</style></head><body><h1>{text(program)}</h1>"
        f"<p>{'; '.join(facts)}.</p><table><tr><th>callable</th>{head}</tr>{body}</table>{more}"
        f"<h2>What to look at</h2>{stops or '<p>Nothing breaks, nothing was compiled again.</p>'}"
        f"{more_parts}</body></html>\n"
    )


def start_from_environment() -> None:
    """FLASHOVER_REPORT, when the package is imported."""
    folder = os.environ.get("FLASHOVER_REPORT", "")
    if not folder:
        return
    collected, process = of_environment(keep_text=True), os.getpid()
    rank = os.environ.get("RANK", "")
    to = Path(folder).absolute() / f"rank-{rank}" if rank.isdigit() else Path(folder).absolute()

    def finish() -> None:
        if os.getpid() != process:  # a forked child has the parent's report
            return
        try:
            written = write(collected, to)
        except OSError as error:
            print(f"flashover: FLASHOVER_REPORT: cannot write to {to}: {error}", file=sys.stderr)
            return
        if written:
            print(f"flashover: the report is {written / 'index.html'}", file=sys.stderr)

    atexit.register(finish)


def summaries(collected: Collected, most: int = 5) -> list[str]:
    """Of the longest compilations, for a terminal."""
    found = explanations(collected)
    if not found:
        return ["nothing was compiled by flashover.compile"]
    lines: list[str] = []
    for _, e in found[:most]:
        lines += [str(e), ""]
    if len(found) > most:
        lines.append(f"{count(len(found) - most, 'more callable')}: --save FOLDER writes all of them")
    return lines
