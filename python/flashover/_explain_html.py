"""An Explanation as one HTML page: no script, no font, no picture from anywhere else.

Whatever comes from the user's program (names, files, guards, sources) goes through text()."""

from __future__ import annotations

import html
import math
import os
from typing import Any, Protocol

from flashover._explain_text import TEXTS, missed_lines, size


class Explained(Protocol):
    """What a page shows of an Explanation."""

    name: str
    bandwidth: dict[str, float]

    @property
    def graphs(self) -> list[dict[str, Any]]: ...
    @property
    def breaks(self) -> list[dict[str, str]]: ...
    @property
    def declines(self) -> list[dict[str, str]]: ...
    @property
    def eager(self) -> list[dict[str, Any]]: ...
    def to_dict(self) -> dict[str, Any]: ...


STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1300px; padding: 0 1em; color: #222; }
h1 { font-size: 1.6em } h2 { font-size: 1.25em; margin-top: 2em; border-bottom: 1px solid #ccc }
pre { background: #f6f6f4; padding: .6em; overflow-x: auto; font-size: 12px; margin: .3em 0 }
td pre { white-space: pre-wrap; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100%; font-size: 13px }
td, th { text-align: left; padding: 2px 8px; border-bottom: 1px solid #eee; vertical-align: top }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.bar { background: #7aa6c2; height: 9px; display: inline-block; min-width: 1px }
.extern { color: #8a4b08 } .kernel { color: #0b5345 } .copy { color: #666 } .frozen { opacity: .6 }
.warn { background: #fff3d6; padding: .5em .8em; margin: .4em 0; border-left: 4px solid #e0a800 }
.small { color: #666; font-size: 12px } summary { cursor: pointer }
"""


def text(value: Any) -> str:
    """Anything as what a browser shows literally."""
    printable = "".join(
        c if c in "\n\t" or (ord(c) >= 32 and not 0xD800 <= ord(c) < 0xE000) else "\ufffd" for c in str(value)
    )
    return html.escape(printable, quote=True)


def fold(title: str, body: str, count: str = "") -> str:
    note = f" <span class=small>{count}</span>" if count else ""
    return f"<details><summary>{text(title)}{note}</summary>{body}</details>"


def pre(value: Any) -> str:
    return f"<pre>{text(value)}</pre>"


def flow(steps: list[dict[str, Any]]) -> str:
    """Steps one below the other, an arc from each to those that read what it wrote."""
    row, left = 18, 170
    writer: dict[tuple[str, bool, int], int] = {}
    arcs = []
    for i, s in enumerate(steps):
        for tensor, kind in s["reads"]:
            source = writer.get((s["side"], True, tensor), writer.get((s["side"], False, tensor)))
            if source is not None and source != i:
                arcs.append((source, i, kind))
        for tensor, _ in s["writes"]:
            writer[s["side"], s["frozen"], tensor] = i
    parts = [f'<svg width="1100" height="{row * len(steps) + 10}" font-size="12" font-family="monospace">']
    for a, b, kind in arcs:
        y, z = row * a + 12, row * b + 8
        bend = left - min(left - 5, 8 + 12 * math.sqrt(b - a))
        parts.append(
            f'<path d="M{left} {y} C{bend:.0f} {y} {bend:.0f} {z} {left} {z}" fill="none" stroke="#9bb" '
            f'stroke-width="1"><title>{text(kind)}</title></path>'
        )
    for i, s in enumerate(steps):
        color = {"kernel": "#0b5345", "extern": "#8a4b08"}.get(s["kind"], "#666")
        parts.append(f'<circle cx="{left}" cy="{row * i + 10}" r="3" fill="{color}"/>')
        shown = s["side"] + (" once" if s["frozen"] else "") + " " + s["name"]
        where = short(" ".join(s["lines"][:1])) + (" in " + s["module"] if s["module"] else "")
        parts.append(f'<text x="{left + 10}" y="{row * i + 14}" fill="{color}">{text(shown.strip()[:70])}'
                     f'<tspan fill="#888">  {text(where[-80:])}</tspan></text>')  # fmt: skip
    return "".join(parts) + "</svg>"


def short(line: str) -> str:
    """A file:line without the folder of installed packages, or the current one."""
    for folder in ("site-packages/", f"{os.getcwd()}/"):
        line = line.rpartition(folder)[2]
    return line


def steps_table(steps: list[dict[str, Any]]) -> str:
    measured = any(s["seconds"] >= 0 for s in steps)
    most = max((s["seconds"] if measured else s["bytes_read"] + s["bytes_written"] for s in steps), default=0) or 1
    head = "<th class=n>#</th><th>step</th><th>fused</th><th>lines</th><th class=n>read</th><th class=n>written</th>"
    if measured:
        head += "<th class=n>&micro;s</th><th class=n>GB/s</th><th class=n>of memory</th>"
    out = [f"<table><tr>{head}<th></th></tr>"]
    for i, s in enumerate(steps):
        lines = "<br>".join(text(short(line)) for line in s["lines"]) + (
            f"<br><span class=small>{text(s['module'])}</span>" if s["module"] else ""
        )
        name = f"<b>{text(s['name'])}</b>"
        if s["source"]:
            name = f"<details><summary>{name}</summary>{pre(s['source'])}</details>"
        note = " ".join(x for x in (s["side"], "frozen" if s["frozen"] else "", s["kind"]) if x)
        cells = (
            f"<td class=n>{i}</td><td class={s['kind']}>{name} <span class=small>{text(note)}</span></td>"
            f"<td>{text(', '.join(s['operators'])) if len(s['operators']) > 1 else ''}</td><td>{lines}</td>"
            f"<td class=n>{size(s['bytes_read'])}</td><td class=n>{size(s['bytes_written'])}</td>"
        )
        if measured:
            known = s["seconds"] >= 0
            cells += (f"<td class=n>{s['seconds'] * 1e6:.1f}</td>" if known else "<td></td>") + (
                f"<td class=n>{s['bandwidth'] / 1e9:.1f}</td><td class=n>{s['share']:.0%}</td>"
                if "share" in s
                else "<td></td><td></td>"
            )
        part = (max(s["seconds"], 0) if measured else s["bytes_read"] + s["bytes_written"]) / most
        cells += f'<td><span class=bar style="width:{part * 120:.0f}px"></span></td>'
        out.append(f"<tr class={'frozen' if s['frozen'] else 'runs'}>{cells}</tr>")
    return "".join(out) + "</table>"


def count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def stops(e: Explained) -> str:
    out = []
    for x in e.eager:
        times = f" ({x['count']} times)" if x["count"] > 1 else ""
        body = f"<b>{'a part' if x['frame'] else 'a call'} ran eager{times}</b>: {text(x['reason'])}"
        out.append(f"<div class=warn>{body}<br><span class=small>at {text(x['where'])}</span></div>")
    for kind, found in (("runs eager", e.declines), ("graph break", e.breaks)):
        for x in found:
            body = f"<b>{kind}</b>: {text(x['reason'])}<br><span class=small>at {text(x['where'])}</span>"
            if x.get("stays"):
                body += f"<br>cannot go on after it: {text(x['stays'])}"
            if x["stack"]:
                body += fold("stack", pre(x["stack"]))
            out.append(f"<div class=warn>{body}</div>")
    return "".join(out)


def graph(i: int, g: dict[str, Any]) -> str:
    after = f" from {text(g['continues'])}" if g["continues"] else ""
    out = [f"<h2>Graph {i}{after}</h2>"]
    facts = [
        f"{g['ops']} operators captured", f"{g['kernels']} kernels", f"{g['extern_calls']} operators left to torch",
        f"{g['seconds'] * 1e3:.1f} ms to compile" + (", from the disk cache" if g["cache_hit"] else ""),
        f"{size(g['arena_bytes'])} of temporaries", f"{g['hits']} calls", f"{text(g['device'])} {text(g['target'])}",
    ]  # fmt: skip
    if g["training"]:
        facts.append(f"{size(g['saved_bytes'])} kept for the backward")
    out.append("<p>" + "; ".join(facts) + ".</p>")
    if g["missed"]:
        why = "<br>".join(text(line) for line in missed_lines(g))
        out.append(f"<div class=warn>compiled again, {g['seconds'] * 1e3:.1f} ms, because<br>{why}</div>")
    measured = sum(max(s["seconds"], 0) for s in g["steps"])
    if measured:
        out.append(f"<p>{measured * 1e6:.1f} &micro;s in {len(g['steps'])} steps.</p>")
    calls, once = ([s for s in g["steps"] if s["frozen"] is frozen] for frozen in (False, True))
    out.append(steps_table(calls))
    if once:
        out.append(fold("steps that run once", steps_table(once), f"{len(once)}, of parameters and constants only"))
    out.append(fold("data flow", flow(g["steps"]), f"{len(g['steps'])} steps"))
    stages = sorted(g["stages"].items(), key=lambda kv: -kv[1])
    total = max(g["seconds"], 1e-9)
    rows = "".join(
        f"<tr><td>{text(k)}</td><td class=n>{v * 1e3:.2f} ms</td>"
        f'<td><span class=bar style="width:{min(v / total, 1) * 300:.0f}px"></span></td></tr>'
        for k, v in stages
    )
    out.append(fold("time of compilation", f"<table>{rows}</table>"))
    out.append(
        fold("guards", pre("\n".join(g["guards"])), f"{len(g['guards'])} in {g['guard_instructions']} instructions")
    )
    for title in TEXTS:
        if title in g["texts"]:
            out.append(fold(title.replace("_", " "), pre(g["texts"][title])))
    return "".join(out)


def page(e: Explained) -> str:
    d = e.to_dict()
    summary = (
        f"{count(d['graph_count'], 'graph')}, {count(len(e.breaks), 'graph break')}, "
        f"{count(len(e.declines), 'call')} left eager, {count(d['op_count'], 'operator')}, "
        f"{count(d['kernel_count'], 'kernel')}, {count(d['extern_call_count'], 'operator')} left to torch"
    )
    memory = "".join(
        f"<p>Memory of {text(k)}: {v / 1e9:.0f} GB/s (measured by copying).</p>" for k, v in e.bandwidth.items()
    )
    skipped = f"<div class=warn>not tried: {text(d['skipped'])}</div>" if d["skipped"] else ""
    graphs = "".join(graph(i, g) for i, g in enumerate(e.graphs))
    return (
        '<!doctype html><html lang=en><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>flashover: {text(e.name)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{text(e.name)}</h1><p>{summary}.</p>{memory}{skipped}{stops(e)}{graphs}</body></html>\n"
    )
