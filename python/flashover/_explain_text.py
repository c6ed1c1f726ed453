"""Lines of text about a call's graphs and steps, for explain()."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from typing import Any, Protocol

from flashover._numerics import Numerics

# Stages' texts of a graph, in order.
TEXTS = (
    "traced",
    "forward",
    "backward",
    "loops",
    "loops_forward",
    "loops_backward",
    "products",
    "products_forward",
    "products_backward",
    "libraries",
    "plan",
    "plan_forward",
    "plan_backward",
)


def parts_of_label(label: str) -> tuple[list[str], list[str], str]:
    """Of "add+relu model.py:31 in self.a, model.py:32 in self.b": operators, lines, the last module."""
    operators, _, rest = label.partition(" ")
    places = rest.split(", ") if rest else []
    module = places[-1].rpartition(" in ")[2] if places and " in " in places[-1] else ""
    return operators.split("+"), [p.rpartition(" in ")[0] or p for p in places], module


def missed_lines(entry: dict[str, Any]) -> Iterator[str]:
    """Why none of the versions there were would do, one guard each."""
    if entry["called"]:
        yield f"for the call at {with_text(entry['called'])}"
    for m in entry["missed"]:
        now = f"; now {m['now']}" if m["now"] else ""
        yield f"not version {m['version']} (used {m['hits']} time{'s' * (m['hits'] != 1)}): {m['guard']}{now}"
        if m["where"]:
            yield f"  seen at {with_text(m['where'])}"
        if m["advice"]:
            yield f"  {m['advice']}"


def symbol_lines(entry: dict[str, Any]) -> Iterator[str]:
    """Which sizes of inputs are symbols, for which numbers they stand, and what became of the others."""
    for s in entry["symbols"]:
        most = "" if s["most"] is None else f" to {s['most']}"
        if s["value"] is not None:
            text = f"{s['size']} is {s['value']}: the program takes it as a number"
        elif s["equals"]:
            text = f"{s['size']} is {s['equals']}"
        else:
            text = f"{s['name']}: {s['size']}, " + (f"{s['least']}{most}" if most else f"at least {s['least']}")
        yield text + (", marked" if s["marked"] else "")
        if s["where"]:
            yield f"  at {with_text(s['where'])}"
    if entry["symbols"]:
        yield from (f"where {guard}" for guard in entry["size_guards"])
        yield f"used {entry['hits']} time{'s' * (entry['hits'] != 1)}"
    if entry["static_because"]:
        yield f"sizes are numbers: {entry['static_because']}"


def with_text(where: str) -> str:
    """file:line with the text of that line."""
    file, _, line = where.rpartition(":")
    text = linecache.getline(file, int(line)).strip() if line.isdigit() else ""
    return f"{where}: {text}" if text else where


def size(n: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} GB"


def step_lines(steps: list[dict[str, Any]]) -> Iterator[str]:
    """A call's kernels and operators, one a line."""
    measured = any(s["seconds"] >= 0 for s in steps)
    total = sum(max(s["seconds"], 0) for s in steps)
    if steps:
        yield f"{'read':>8} {'written':>8}" + (f" {'us':>9} {'GB/s':>6} share" if measured else "") + "  step"
    for s in steps:
        text = f"{size(s['bytes_read']):>8} {size(s['bytes_written']):>8}"
        if measured and s["seconds"] >= 0:
            text += f" {s['seconds'] * 1e6:9.1f} {s.get('bandwidth', 0) / 1e9:6.1f} {s.get('share', 0):5.0%}"
        elif measured:
            text += " " * 23
        side = {"forward": "forward ", "backward": "backward "}.get(s["side"], "") + ("frozen " if s["frozen"] else "")
        where = " ".join(s["lines"][:1]) + (f" in {s['module']}" if s["module"] else "")
        yield f"{text}  {side}{s['kind']} {s['name']}" + (f"  {where}" if where else "")
    if measured:
        yield f"{total * 1e6:.1f} us in all"


class Explained(Protocol):
    """What texts, summaries and pages show of an Explanation."""

    name: str
    tallies: dict[str, Any]
    bandwidth: dict[str, float]
    call_seconds: float | None
    eager_seconds: float | None

    @property
    def graphs(self) -> list[dict[str, Any]]: ...
    @property
    def breaks(self) -> list[dict[str, Any]]: ...
    @property
    def declines(self) -> list[dict[str, str]]: ...
    @property
    def recompiles(self) -> list[dict[str, Any]]: ...
    @property
    def eager(self) -> list[dict[str, Any]]: ...
    @property
    def numerics(self) -> Numerics | None: ...
    def to_dict(self) -> dict[str, Any]: ...


def everything(told: Explained) -> Iterator[str]:
    """All of an Explanation, whatever its length."""
    d = told.to_dict()
    yield (
        f"{told.name}: {d['graph_count']} graph(s), {len(told.breaks)} graph break(s), "
        f"{len(told.declines)} call(s) left eager, "
        f"{d['op_count']} ops, {d['kernel_count']} kernels, {d['extern_call_count']} extern calls"
    )
    if d["skipped"]:
        yield f"  not tried: {d['skipped']}"
    yield from _stop_lines(told)
    for device, rate in told.bandwidth.items():
        yield f"  memory of {device}: {rate / 1e9:.0f} GB/s measured (copying)"
    for i, graph in enumerate(told.graphs):
        yield from _graph_lines(i, graph)


def _stop_lines(told: Explained) -> Iterator[str]:
    """What runs eager, and where graphs end."""
    for x in told.eager:
        what = "part of the call" if x["frame"] else "call"
        times = f" ({x['count']} times)" if x["count"] > 1 else ""
        yield f"  ran eager, {what}{times}: {x['reason']}" + (f" at {x['where']}" if x["where"] else "")
    for kind, stops in (("eager", told.declines), ("graph break", told.breaks)):
        for x in stops:
            yield f"  {kind}: {x['reason']}" + (f"\n    at {x['where']}" if x["where"] else "")
            yield from (f"      {frame}" for frame in x["stack"].splitlines())
            if x.get("stays"):
                yield f"    cannot go on after it: {x['stays']}"


def _graph_lines(i: int, e: dict[str, Any]) -> Iterator[str]:
    times = ", ".join(f"{k} {v * 1e3:.1f} ms" for k, v in e["stages"].items() if v >= 5e-5)
    cache = ", from the disk cache" if e["cache_hit"] else ""
    after = f" from {e['continues']}" if e["continues"] else ""
    yield f"  graph {i}{after}: {e['ops']} ops, {e['seconds'] * 1e3:.1f} ms{cache} ({times})"
    if e["training"]:
        forward = e["kernels"] - e["backward_kernels"]
        yield (
            f"    forward {forward} kernels, backward {e['backward_kernels']} kernels, "
            f"{e['saved_bytes']} bytes kept for the backward"
        )
    if e["missed"]:
        yield f"    compiled again ({e['seconds'] * 1e3:.1f} ms), as version {e['version']}, because:"
        yield from (f"      {line}" for line in missed_lines(e))
    if symbols := list(symbol_lines(e)):
        yield f"    sizes that version {e['version']} serves:"
        yield from (f"      {line}" for line in symbols)
    yield from (f"    {line}" for line in step_lines(e["steps"]))
    parts = f": {e['guard_parts']}" if e["guard_parts"] else ""
    yield f"    {len(e['guards'])} guards in {e['guard_instructions']} compares{parts}"
    yield from (f"      {g}" for g in e["guards"])
    for title in TEXTS:
        if title in e["texts"]:
            yield f"    {title}:"
            yield from (f"      {line}" for line in e["texts"][title].splitlines())
