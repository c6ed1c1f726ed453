"""docs/developer/passes.md: the passes over graphs in their order, from the one list (src/graph/passes.cpp).

python tools/pass_table.py           # writes the page
python tools/pass_table.py --check   # exits with 1 when the page is not what the list says
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "developer" / "passes.md"
HEAD = """# Passes over graphs

Written by `tools/pass_table.py` from `src/graph/passes.cpp`, the one list; the pipelines, the golden tests,
`disable_passes` and the tests iterate it. Each pass has a function, a header, a source and a text test
(`src/graph/passes/test/<pass>.ir`) of its name. A pass that runs twice has a second row (`cse_core`).

Pipelines: `core` takes a traced program (forward and backward in one, if it trains) to core form. `backward` is for
the backward half behind the partition. `few_tangents` comes before it for a backward whose tangents did not all come.
`custom` is what a backend of the user's gets. `schedule` is the last step of each core graph before its loops.

| pass | from | to | pipelines | after | why it is there |
|---|---|---|---|---|---|
"""


def page() -> str:
    from flashover import _C

    rows = []
    for p in _C.passes():
        cells = [f"`{p['name']}`", p["input"], p["output"], ", ".join(p["pipelines"])]
        cells += [", ".join(f"`{a}`" for a in p["after"]), p["why"]]
        rows.append("| " + " | ".join(cells) + " |\n")
    return HEAD + "".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        sys.exit(f"{PAGE} is not what src/graph/passes.cpp says: run python tools/pass_table.py")


if __name__ == "__main__":
    main()
