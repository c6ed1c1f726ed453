"""Writes docs/user/reasons.md: why programs are cut, and compiled again. `--check`: whether it is as this writes it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from flashover._reasons import BREAKS, PAGE, RECOMPILES, Reason

ROOT = Path(__file__).resolve().parents[1]
HEAD = """\
# Reasons

Messages, logs and reports name one of these. `python tools/reasons_page.py` makes this page of the table in
`python/flashover/_reasons.py`; `tests/errors/test_reasons.py` has a program for each.
"""


def section(row: Reason) -> Iterator[str]:
    yield f"\n### {row.name}\n"
    yield textwrap.fill(f"{row.title[0].upper()}{row.title[1:]}. {row.why}", 118)
    yield ""
    for hint in row.hints:
        yield textwrap.fill(f"- {hint}", 118, subsequent_indent="  ")


def page() -> str:
    lines = [HEAD, "## Why a graph ends", ""]
    lines += ["What graph breaks are: [graph breaks](graph-breaks.md)."]
    for row in BREAKS:
        lines += section(row)
    lines += ["\n## Why a call is compiled again", ""]
    lines += ["How versions are made: [start](start.md), [sizes](sizes.md)."]
    for row in RECOMPILES:
        lines += section(row)
    return "\n".join(lines) + "\n"


def main() -> int:
    if "--check" in sys.argv[1:]:
        return int((ROOT / PAGE).read_text(encoding="utf-8") != page())
    (ROOT / PAGE).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
