"""Draws docs/benchmarks/speedups.svg, geometric means over the tables of docs/benchmarks: eager is 1.

python tools/speedups.py            # writes the picture
python tools/speedups.py --print    # the numbers
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PAGES = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
PICTURE = PAGES / "speedups.svg"
Row = dict[str, str]


@dataclass(frozen=True)
class Bars:
    """One group of the picture: speed-ups over eager."""

    name: str
    models: int
    torch_compile: float
    flashover: float


def tables(page: Path) -> list[list[Row]]:
    """Every Markdown table of a page, a row as column -> cell."""
    found: list[list[Row]] = []
    header: list[str] = []
    for line in page.read_text().splitlines():
        if not line.startswith("|"):
            header = []
            continue
        cells = [c.strip().strip("*") for c in line.strip("|").split("|")]
        if not header:
            header = cells
            found.append([])
        elif set(line) - set("|-: "):
            found[-1].append(dict(zip(header, cells, strict=True)))
    return found


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def bars(name: str, rows: list[Row], torch_compile: Callable[[Row], float], flashover: Callable[[Row], float]) -> Bars:
    return Bars(name, len(rows), mean([torch_compile(r) for r in rows]), mean([flashover(r) for r in rows]))


def measured() -> list[Bars]:
    inference, training = (t for t in tables(PAGES / "gpu.md") if "t.c x" in t[0])
    fp32, bf16 = (t for t in tables(PAGES / "cpu.md") if "flashover ms" in t[0])
    steps = [t for t in tables(PAGES / "training.md") if "flashover x" in t[0]]
    # bf16 training: two tables, and bert, which stands in the text: 1.88x eager, 1.69x torch.compile.
    autocast = [*steps[0], *steps[1], {"torch.compile x": str(1.88 / 1.69), "flashover x": "1.88"}]
    return [
        bars("H200, bf16 inference", inference, lambda r: float(r["t.c x"]), lambda r: float(r["fl x"])),
        bars("H200, bf16 training", training, lambda r: float(r["t.c x"]), lambda r: float(r["fl x"])),
        *(
            bars(
                f"two CPU cores, {precision} inference",
                rows,
                lambda r: float(r["eager ms"]) / float(r["torch.compile ms"]),
                lambda r: float(r["eager ms"]) / float(r["flashover ms"]),
            )
            for precision, rows in (("fp32", fp32), ("bf16", bf16))
        ),
        *(
            bars(
                f"two CPU cores, {precision} training",
                rows,
                lambda r: float(r["torch.compile x"]),
                lambda r: float(r["flashover x"]),
            )
            for precision, rows in (("fp32", steps[2]), ("bf16", autocast))
        ),
    ]


# Colours that are seen on white and on black.
STYLE = """
  text { font: 13px sans-serif; fill: #7d8590 }
  .title { font-weight: bold }
  .eager { fill: #a0a8b0 } .torch { fill: #6e8fb5 } .flashover { fill: #e8590c }
"""
LEFT, UNIT, BAR, GAP = 264, 110, 13, 20


def svg(groups: list[Bars]) -> str:
    width = LEFT + round(UNIT * max(g.flashover for g in groups)) + 70
    out: list[str] = []
    y = 34
    for g in groups:
        out.append(f'<text class="title" x="{LEFT - 12}" y="{y + 16}" text-anchor="end">{g.name}</text>')
        out.append(f'<text x="{LEFT - 12}" y="{y + 33}" text-anchor="end">{g.models} models</text>')
        for kind, value in (("eager", 1.0), ("torch", g.torch_compile), ("flashover", g.flashover)):
            length = round(UNIT * value)
            out.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{length}" height="{BAR}"/>')
            if kind != "eager":
                out.append(f'<text x="{LEFT + length + 6}" y="{y + 11}">{value:.2f}x</text>')
            y += BAR + 1
        y += GAP
    x = LEFT
    legend: list[str] = []
    for kind, words in (("eager", "eager"), ("torch", "torch.compile"), ("flashover", "Flashover")):
        legend.append(f'<rect class="{kind}" x="{x}" y="8" width="13" height="13"/>')
        legend.append(f'<text x="{x + 19}" y="19">{words}</text>')
        x += 40 + 8 * len(words)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" role="img">'
    words = "; ".join(f"{g.name}: torch.compile {g.torch_compile:.2f}, Flashover {g.flashover:.2f}" for g in groups)
    title = f"<title>Speed-up over eager. {words}</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", *legend, *out, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="the numbers, no picture")
    if parser.parse_args().print:
        for g in measured():
            print(f"{g.name} ({g.models} models): torch.compile {g.torch_compile:.2f}, flashover {g.flashover:.2f}")
    else:
        PICTURE.write_text(svg(measured()))


if __name__ == "__main__":
    main()
