"""An Explanation as one HTML page: nothing is loaded from anywhere else, and the one script is the page's own.

Whatever comes from the user's program (names, files, guards, sources) goes through text()."""

from __future__ import annotations

import math
from typing import Any

from flashover._explain_text import TEXTS, Explained, missed_lines, size
from flashover._page_parts import SCRIPT, STYLE, highlighted, policy, text
from flashover._page_source import anchor, hue, modules_part, source_part
from flashover._summary import count, duration, shares_line, short, step_name, verdict


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


def steps_table(graph: int, steps: list[tuple[int, dict[str, Any]]]) -> str:
    """steps: with their numbers in the graph."""
    measured = any(s["seconds"] >= 0 for _, s in steps)
    most = max((s["seconds"] if measured else s["bytes_read"] + s["bytes_written"] for _, s in steps), default=0) or 1
    head = "<th class=n>#</th><th>step</th><th>fused</th><th>lines</th><th class=n>read</th><th class=n>written</th>"
    if measured:
        head += "<th class=n>&micro;s</th><th class=n>GB/s</th><th class=n>of memory</th>"
    head = head.replace("<th class=n>", "<th class='n sorts'>").replace("<th>", "<th class=sorts>")
    out = [f"<table class=steps><tbody><tr>{head}<th></th></tr>"]
    for i, s in steps:
        lines = "<br>".join(text(short(line)) for line in s["lines"]) + (
            f"<br><span class=small>{text(s['module'])}</span>" if s["module"] else ""
        )
        name = f"<b>{text(step_name(s))}</b>"
        symbol = f"<p class=small>{text(s['name'])}</p>"
        if s["source"]:
            source = f"{symbol}<pre>{highlighted(s['source'])}</pre>"
            name = f"<details><summary>{name}</summary>{source}</details>"
        chip = f'<span class=chip style="--hue:{hue(graph, i)}">{i}</span>'
        note = " ".join(x for x in (s["side"], "frozen" if s["frozen"] else "", s["kind"]) if x)
        cells = (
            f"<td class=n data-value={i}>{chip}</td>"
            f"<td class={s['kind']}>{name} <span class=small>{text(note)}</span></td>"
            f"<td>{text(', '.join(s['operators'])) if len(s['operators']) > 1 else ''}</td><td>{lines}</td>"
            f"<td class=n data-value={s['bytes_read']}>{size(s['bytes_read'])}</td>"
            f"<td class=n data-value={s['bytes_written']}>{size(s['bytes_written'])}</td>"
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
        out.append(f"<tr id={anchor(graph, i)} class={'frozen' if s['frozen'] else 'runs'}>{cells}</tr>")
    return "".join(out) + "</tbody></table>"


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
    calls, once = ([(n, s) for n, s in enumerate(g["steps"]) if s["frozen"] is frozen] for frozen in (False, True))
    out.append(steps_table(i, calls))
    if once:
        out.append(fold("steps that run once", steps_table(i, once), f"{len(once)}, of parameters and constants only"))
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


def bound_by(e: Explained) -> str:
    """Of measured calls: how near to the memory's rate the steps come that do most."""
    steps = [s for g in e.graphs for s in g["steps"] if s["seconds"] > 0]
    if not e.bandwidth or not steps:
        return ""
    moved = sum(s["bytes_read"] + s["bytes_written"] for s in steps)
    rate = moved / sum(s["seconds"] for s in steps)
    share = rate / max(e.bandwidth.values())
    return card(f"{rate / 1e9:.0f} GB/s", f"moved by its steps, {share:.0%} of what copying reaches")


def card(what: str, words: str) -> str:
    return f"<div class=card><b>{text(what)}</b> <span class=small>{text(words)}</span></div>"


def cards(e: Explained) -> str:
    """The page in a few numbers."""
    d = e.to_dict()
    out = []
    if e.call_seconds and e.eager_seconds:
        ratio = e.eager_seconds / e.call_seconds
        out.append(
            card(f"{ratio:.2f}x", f"of eager's speed: {duration(e.eager_seconds)} to {duration(e.call_seconds)}")
        )
    out.append(card(f"{d['kernel_count']} + {d['extern_call_count']}", "kernels and calls of libraries"))
    out.append(card(count(len(e.breaks), "graph break"), count(d["graph_count"], "graph")))
    out.append(card(count(len(e.recompiles), "recompilation"), f"{len(e.declines)} calls or parts left eager"))
    out.append(card(duration(sum(g["seconds"] for g in e.graphs)), "to compile"))
    kept = sum(g["saved_bytes"] for g in e.graphs)
    memory = f"of temporaries; {size(kept)} kept for the backward" if kept else "of temporaries"
    out.append(card(size(max((g["arena_bytes"] for g in e.graphs), default=0)), memory))
    out.append(bound_by(e))
    return f"<div class=cards>{''.join(out)}</div>"


def versions_part(e: Explained) -> str:
    """What there is a version for, where there are several."""
    found = [g for g in e.graphs if not g["continues"]]
    if len(found) < 2:
        return ""
    rows = "".join(
        f"<tr><td class=n>{g['version']}</td><td class=n>{g['hits']}</td><td class=n>{duration(g['seconds'])}</td>"
        f"<td>{text(', '.join(s['size'] for s in g['symbols'] if s['value'] is None) or 'none')}</td>"
        f"<td>{text(g['recompiled_for'])}</td></tr>"
        for g in found
    )
    head = "<th class=n>version</th><th class=n>calls</th><th class=n>compiled in</th><th>sizes that may change</th>"
    return f"<h2>Versions</h2><table><tr>{head}<th>because</th></tr>{rows}</table>"


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
    shares = "".join(f"<p>{text(line)}</p>" for line in shares_line(e))
    graphs = "".join(graph(i, g) for i, g in enumerate(e.graphs))
    find = '<p><input class=find type=search placeholder="find a step: name, line, module"></p>' if graphs else ""
    return (
        '<!doctype html><html lang=en><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>flashover: {text(e.name)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{text(e.name)}</h1><p>{text(verdict(e))}</p>{cards(e)}<p>{summary}.</p>{shares}{memory}{skipped}"
        f"{stops(e)}{source_part(e)}{modules_part(e)}{versions_part(e)}{find}{graphs}"
        f"<script>{SCRIPT}</script></body></html>\n"
    )
