"""An Explanation on one screen: a verdict, what to mend, where time goes. The rest has names of its own."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from typing import Any

from flashover._explain_text import Explained, size, with_text
from flashover._numerics import NOT_PROMISED
from flashover._reasons import reason_of

MOST_LINES = 40
_PLACES, _STEPS, _WIDTH = 3, 6, 118


def count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def duration(seconds: float) -> str:
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def short(where: str) -> str:
    """A file:line as it is seen from here."""
    file, _, line = where.rpartition(":")
    here = os.getcwd() + os.sep
    if "site-packages/" in file:
        file = file.rpartition("site-packages/")[2]
    return f"{file.removeprefix(here)}:{line}" if file else where


def source_line(where: str) -> str:
    """The text of that line; empty where there is none."""
    text = with_text(where)
    return text[len(where) + 2 :] if text != where else ""


def step_name(step: dict[str, Any]) -> str:
    """A step by the program's operators: layer_norm+gelu."""
    names = []
    for operator in step["operators"]:
        parts = operator.split(".")  # namespace, name, overload; of what a kernel computes the name alone
        name = parts[1] if len(parts) > 1 else operator
        names.append(name.strip("_").removeprefix("native_") or name)
    shown = "+".join(names[:5]) + (f"+{len(names) - 5} more" if len(names) > 5 else "")
    return shown or step["name"]


def by_place(stops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Stops of one line and reason as one, the costly ones first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for s in stops:
        into = found.setdefault((s["where"], s["reason"]), {**s, "count": 0, "seconds": 0.0, "places": 0})
        into["count"] += s.get("count", 1)
        into["seconds"] += s.get("seconds", 0.0)
        into["places"] += 1
    return sorted(found.values(), key=lambda s: (-s["seconds"], -s["count"]))


def verdict(e: Explained) -> str:
    """One sentence: is it good?"""
    graphs, breaks, eager = e.graphs, e.breaks, e.eager
    whole = [x for x in eager if not x["frame"]]
    if not graphs:
        if e.tallies.get("skipped"):
            return f"{e.name} was not tried: {e.tallies['skipped']}."
        reasons = [x["reason"] for x in [*e.declines, *eager]]
        return f"{e.name} runs eager" + (f": {reasons[0]}." if reasons else ": nothing was compiled.")
    kernels, calls = (sum(g[key] for g in graphs) for key in ("kernels", "extern_calls"))
    work = f"{count(kernels, 'kernel')} and {count(calls, 'call')} of libraries"
    versions = {g["version"] for g in graphs if not g["continues"]}
    if breaks:
        lines = len({b["where"] for b in breaks})
        text = f"{e.name} is cut into {count(len(graphs), 'graph')} by {count(len(breaks), 'graph break')}" + (
            f" on {count(lines, 'line')}" if lines != len(breaks) else ""
        )
        text += f" ({work})"
    elif len(versions) > 1:
        text = f"{e.name} is compiled in {count(len(versions), 'version')}, each one graph ({work} in all)"
    else:
        text = f"{e.name} is {count(len(graphs), 'graph')}: {work}"
    if whole:
        text += f"; {count(sum(x['count'] for x in whole), 'call')} ran eager"
    elif e.declines:
        text += f"; {count(len(e.declines), 'part')} of it cannot be compiled"
    elif not any(x["frame"] for x in eager):
        text += "; nothing runs eager"
    if e.call_seconds and e.eager_seconds:
        ratio = e.eager_seconds / e.call_seconds
        text += f"; {ratio:.2f}x eager's speed ({duration(e.eager_seconds)} -> {duration(e.call_seconds)})"
    return text + "."


def break_lines(breaks: list[dict[str, Any]]) -> Iterator[str]:
    groups = by_place(breaks)
    if not groups:
        return
    yield f"graph breaks ({len(breaks)}); ms: to compile what comes after"
    for b in groups[:_PLACES]:
        row = reason_of(b["reason"])
        yield f"  {short(b['where'])}: {source_line(b['where'])}"
        yield f"    {count(b['count'], 'time')}, {b['seconds'] * 1e3:.1f} ms: {row.title} ({b['reason']})"
        yield f"    -> {row.hints[0]}"
    if len(groups) > _PLACES:
        yield f"  {count(len(groups) - _PLACES, 'more line')}: .breaks"


def eager_lines(e: Explained) -> Iterator[str]:
    """Calls and parts that run as the program is written."""
    listed = {x["reason"] for x in e.eager}
    rest = [x for x in e.declines if x["reason"] not in listed]
    lines = []
    for x in e.eager:
        times = f", {x['count']} times" if x["count"] > 1 else ""
        where = f" at {short(x['where'])}" if x["where"] else ""
        lines.append(f"  ran eager, {'part of the call' if x['frame'] else 'call'}{times}: {x['reason']}{where}")
    lines += [f"  eager: {x['reason']}" + (f" at {short(x['where'])}" if x["where"] else "") for x in rest]
    yield from lines[:_PLACES]
    if len(lines) > _PLACES:
        yield f"  {count(len(lines) - _PLACES, 'more reason')}: .eager, .declines"


def recompile_lines(recompiles: list[dict[str, Any]]) -> Iterator[str]:
    if not recompiles:
        return
    cost = sum(r["seconds"] for r in recompiles)
    yield f"compiled again {count(len(recompiles), 'time')}, {cost * 1e3:.1f} ms"
    for r in sorted(recompiles, key=lambda r: -r["seconds"])[: _PLACES - 1]:
        m = r["missed"][-1]
        yield f"  {m['guard']}" + (f"; now {m['now']}" if m["now"] else "")
        if m["where"]:
            yield f"    asked at {short(m['where'])}: {source_line(m['where'])}"
    if len(recompiles) > _PLACES - 1:
        yield f"  {len(recompiles) - _PLACES + 1} more: .recompiles"


def weight_of(steps: list[dict[str, Any]]) -> tuple[str, str]:
    """What steps are compared by: the key, and what it is called."""
    return ("seconds", "time") if any(s["seconds"] >= 0 for s in steps) else ("bytes", "bytes moved")


def _weight(step: dict[str, Any], key: str) -> float:
    return max(step["seconds"], 0.0) if key == "seconds" else step["bytes_read"] + step["bytes_written"]


def step_rows(e: Explained) -> tuple[list[tuple[float, dict[str, Any]]], str, str]:
    """(part of all, step), the largest first, of what every call runs; what is compared, in words."""
    steps = [s for g in e.graphs for s in g["steps"] if not s["frozen"]]
    key, words = weight_of(steps)
    total = sum(_weight(s, key) for s in steps) or 1.0
    rows = sorted(((_weight(s, key) / total, s) for s in steps), key=lambda r: -r[0])
    return rows, key, words


def _amount(step: dict[str, Any], key: str) -> str:
    value = _weight(step, key)
    return duration(value) if key == "seconds" else size(value)


def steps_lines(e: Explained) -> Iterator[str]:
    rows, key, words = step_rows(e)
    if not rows:
        return
    yield f"steps by {words}" + ("" if key == "seconds" else " (explain(f, measure=True) for times)")
    for part, s in rows[:_STEPS]:
        place = " ".join(short(line) for line in s["lines"][:1]) + (f" in {s['module']}" if s["module"] else "")
        side = f"{s['side']} " if s["side"] else ""
        share = f" {s['share']:.0%} of memory's rate" if "share" in s else ""
        yield f"  {part:4.0%} {_amount(s, key):>8}  {side}{s['kind']} {step_name(s)}  {place}{share}"
    if len(rows) > _STEPS:
        yield f"  {count(len(rows) - _STEPS, 'more step')}: .kernels, .externs"


def shares_line(e: Explained) -> Iterator[str]:
    """How a call is made up of kernels, libraries and what lies around them."""
    rows, key, words = step_rows(e)
    if not rows:
        return
    parts = {"kernels": 0.0, "libraries": 0.0, "copies": 0.0}
    names = {"kernel": "kernels", "extern": "libraries"}
    total = 0.0
    for _, s in rows:
        parts[names.get(s["kind"], "copies")] += _weight(s, key)
        total += _weight(s, key)
    if key == "seconds" and e.call_seconds and e.call_seconds > total:
        parts["the rest (Python, guards, eager parts)"] = e.call_seconds - total
        total = e.call_seconds
    shown = ", ".join(f"{name} {value / (total or 1):.0%}" for name, value in parts.items() if value > 0)
    yield f"of a call's {words}: {shown or 'nothing'}"


def compile_line(e: Explained) -> Iterator[str]:
    graphs = e.graphs
    if not graphs:
        return
    stages: dict[str, float] = {}
    for g in graphs:
        for name, seconds in g["stages"].items():
            stages[name] = stages.get(name, 0.0) + seconds
    top = sorted(stages.items(), key=lambda s: -s[1])[:4]
    cached = sum(bool(g["cache_hit"]) for g in graphs)
    yield (
        f"compile time {duration(sum(g['seconds'] for g in graphs))}: "
        + ", ".join(f"{name} {duration(seconds)}" for name, seconds in top if seconds > 0)
        + (f"; {cached} of {count(len(graphs), 'graph')} from the disk cache" if cached else "")
    )


def training_line(e: Explained) -> Iterator[str]:
    graphs = [g for g in e.graphs if g["training"]]
    if graphs:
        backward = sum(g["backward_kernels"] for g in graphs)
        kept = sum(g["saved_bytes"] for g in graphs)
        yield (
            f"training: {count(sum(g['kernels'] for g in graphs) - backward, 'forward kernel')}, "
            f"{count(backward, 'backward kernel')}, {size(kept)} kept for the backward"
        )


def numerics_lines(e: Explained) -> Iterator[str]:
    """Where an option promises bits."""
    if (found := e.numerics) is not None and found.promise != NOT_PROMISED:
        yield from found.lines(_PLACES, short)


def sizes_line(e: Explained) -> Iterator[str]:
    symbols = sorted({s["size"] for g in e.graphs for s in g["symbols"] if s["value"] is None})
    if symbols:
        yield f"sizes that may change: {', '.join(symbols[:4])}" + (" ..." if len(symbols) > 4 else "")


def summary(e: Explained) -> list[str]:
    """At most MOST_LINES lines."""
    lines = [verdict(e)]
    if e.graphs and e.tallies.get("skipped"):
        lines.append(f"  the last call was not tried: {e.tallies['skipped']}")
    lines += eager_lines(e)
    lines += break_lines(e.breaks)
    lines += recompile_lines(e.recompiles)
    lines += steps_lines(e)
    lines += shares_line(e)
    lines += training_line(e)
    lines += sizes_line(e)
    lines += numerics_lines(e)
    lines += [f"memory of {device}: {rate / 1e9:.0f} GB/s measured (copying)" for device, rate in e.bandwidth.items()]
    lines += compile_line(e)
    lines = lines[: MOST_LINES - 1]
    lines.append("more: .breaks .recompiles .kernels .guards .plan .text() .text('loops') .save('page.html')")
    return [line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..." for line in lines]


def summary_html(e: Explained) -> str:
    """For notebooks: the verdict, the steps as a table, the rest of the summary below."""
    rows, key, words = step_rows(e)
    cells = "".join(
        f"<tr><td>{part:.0%}</td><td>{html.escape(_amount(s, key))}</td><td>{html.escape(s['kind'])}</td>"
        f"<td>{html.escape(step_name(s))}</td><td>{html.escape(' '.join(map(short, s['lines'][:1])))}</td>"
        f"<td>{html.escape(s['module'])}</td></tr>"
        for part, s in rows[: 2 * _STEPS]
    )
    head = f"<tr><th></th><th>{words}</th><th></th><th>step</th><th>line</th><th>module</th></tr>"
    rest = "\n".join([*eager_lines(e), *break_lines(e.breaks), *recompile_lines(e.recompiles), *compile_line(e)])
    return f"<p><b>{html.escape(verdict(e))}</b></p><table>{head}{cells}</table><pre>{html.escape(rest)}</pre>"
