"""The part of an explanation's page that is made around the user's source: heat by line, fused groups, breaks."""

from __future__ import annotations

import linecache
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flashover._explain_text import Explained
from flashover._page_parts import text
from flashover._reasons import reason_of
from flashover._stacks import LIBRARIES
from flashover._summary import count, duration, short, step_name, weight_of

AROUND = 3  # lines before and after one that is shown for what it does
MOST_LINES = 600  # of a file


@dataclass
class Line:
    """What is known of one line of the program."""

    part: float = 0.0  # of the call's time, or bytes
    steps: list[tuple[str, str, float]] = field(default_factory=list)  # anchor, name, part
    breaks: list[dict[str, Any]] = field(default_factory=list)


def anchor(graph: int, step: int) -> str:
    return f"g{graph}s{step}"


def hue(graph: int, step: int) -> int:
    """A colour for a step: neighbours are far from each other."""
    return (graph * 101 + step * 47) % 360


def by_line(e: Explained) -> dict[str, dict[int, Line]]:
    """By file and line; files of libraries only where there is no other."""
    found: dict[str, dict[int, Line]] = defaultdict(lambda: defaultdict(Line))
    steps = [(g, i, s) for g, graph in enumerate(e.graphs) for i, s in enumerate(graph["steps"]) if not s["frozen"]]
    key, _ = weight_of([s for _, _, s in steps])

    def weight(s: dict[str, Any]) -> float:
        return max(s["seconds"], 0.0) if key == "seconds" else s["bytes_read"] + s["bytes_written"]

    total = sum(weight(s) for _, _, s in steps) or 1.0
    for g, i, s in steps:
        places = [p for p in map(split, s["lines"]) if p]
        for file, line in places:
            of_line = found[file][line]
            part = weight(s) / total / len(places)
            of_line.part += part
            of_line.steps.append((anchor(g, i), step_name(s), part))
    for b in e.breaks:
        if place := split(b["where"]):
            found[place[0]][place[1]].breaks.append(b)
    own = {file: lines for file, lines in found.items() if not file.startswith(LIBRARIES)}
    return own or dict(found)


def split(where: str) -> tuple[str, int] | None:
    file, _, line = where.rpartition(":")
    return (file, int(line)) if line.isdigit() and linecache.getline(file, int(line)) else None


def shown_lines(known: dict[int, Line]) -> list[int]:
    """Those of which something is known, with their surroundings."""
    wanted = {n for line in known for n in range(max(line - AROUND, 1), line + AROUND + 1)}
    return sorted(wanted)[:MOST_LINES]


def _chips(line: Line) -> str:
    out = []
    for name, title, part in line.steps[:8]:
        graph, step = map(int, name[1:].split("s"))
        out.append(
            f'<a class=chip style="--hue:{hue(graph, step)}" href="#{name}" title="{text(title)}, {part:.1%}">'
            f"{text(title[:28])}</a>"
        )
    more = len(line.steps) - 8
    return " ".join(out) + (f" <span class=small>{count(more, 'more step')}</span>" if more > 0 else "")


def _notes(line: Line) -> Iterator[str]:
    for b in line.breaks:
        row = reason_of(b["reason"])
        yield (
            f"<tr class=note><td></td><td></td><td colspan=2><b>graph break</b>, {count(b['count'], 'time')}, "
            f"{duration(b['seconds'])} to compile what comes after: {text(row.title)}.<br>"
            f"<span class=small>{text(b['reason'])}</span><br>&rarr; {text(row.hints[0])}</td></tr>"
        )


def file_part(file: str, known: dict[int, Line], most: float) -> str:
    """most: the part of the hottest line of the program."""
    rows, last = [], None
    for n in shown_lines(known):
        source = linecache.getline(file, n).rstrip("\n")
        if not source and not linecache.getline(file, n):
            continue
        if last is not None and n != last + 1:
            rows.append("<tr class=gap><td></td><td></td><td colspan=2>&#8942;</td></tr>")
        last = n
        line = known.get(n, Line())
        mark = "<span class=break title='the graph ends here'>&#9632;</span>" if line.breaks else ""
        heat = f"{line.part:.0%}" if line.part >= 0.005 else ""
        rows.append(
            f'<tr style="--heat:{line.part / most:.3f}"><td class=n>{mark}{n}</td><td class=heat>{heat}</td>'
            f"<td class=code><code>{text(source)}</code></td><td>{_chips(line)}</td></tr>"
        )
        rows += _notes(line)
    return f"<h3>{text(short(f'{file}:1').rpartition(':')[0])}</h3><table class=source>{''.join(rows)}</table>"


def source_part(e: Explained) -> str:
    """Every file of the program that the call went through."""
    files = by_line(e)
    ranked = sorted(files.items(), key=lambda item: -sum(line.part for line in item[1].values()))
    most = max((line.part for known in files.values() for line in known.values()), default=0.0) or 1.0
    parts = [file_part(file, known, most) for file, known in ranked[:12]]
    if not parts:
        return ""
    _, words = weight_of([s for g in e.graphs for s in g["steps"]])
    note = (
        f"<p class=small>percent of the call's {words}; steps of one colour are one kernel, also over several lines</p>"
    )
    return f"<h2>Your program</h2>{note}{''.join(parts)}"


@dataclass
class Module:
    """A node of the tree of modules."""

    part: float = 0.0
    inner: dict[str, Module] = field(default_factory=dict)


def module_tree(e: Explained) -> Module:
    steps = [s for g in e.graphs for s in g["steps"] if not s["frozen"]]
    key, _ = weight_of(steps)
    root = Module()
    for s in steps:
        weight = max(s["seconds"], 0.0) if key == "seconds" else s["bytes_read"] + s["bytes_written"]
        root.part += weight
        at = root
        for name in filter(None, s["module"].split(".")):
            at = at.inner.setdefault(name, Module())
            at.part += weight
    return root


def modules_part(e: Explained) -> str:
    root = module_tree(e)
    if not root.inner or not root.part:
        return ""

    def row(name: str, m: Module) -> str:
        share = m.part / root.part
        label = f"<span class=flame style='width:{share * 100:.1f}%'></span>{text(name)} {share:.0%}"
        inner = "".join(row(n, c) for n, c in sorted(m.inner.items(), key=lambda item: -item[1].part))
        opened = " open" if share > 0.2 else ""
        return (
            f"<details{opened}><summary>{label}</summary>{inner}</details>"
            if inner
            else f"<div class=leaf>{label}</div>"
        )

    tops = "".join(row(n, c) for n, c in sorted(root.inner.items(), key=lambda item: -item[1].part))
    return f"<h2>By module</h2><div class=tree>{tops}</div>"
