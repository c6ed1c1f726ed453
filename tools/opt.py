"""Runs passes over graphs, or the stages behind them, on a text file and prints what comes out.

    ./x opt --pass decompose,fold graph.ir
    ./x opt --pass expand,build_plan,hoist_checks,assign_arena_offsets --options threads=8 graph.ir
    ./x opt src/graph/passes/test/fold.ir      # a text test: each case, with the passes that it names
    ./x opt --list                             # all names, in their order

A `-` reads from standard input. Passes take and print graphs (src/graph/passes.h), stages what src/planner/stages.h
says. --machine says what the machine has beside the defaults (src/target/machine.h), --options names fields of
planner::Options; `machine:` in a text test is either, as its passes need.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))


@dataclass
class Case:
    """A case of a text test, or a whole file that holds none."""

    text: str
    passes: list[str]
    machine: str


def cases_of(text: str) -> list[Case]:
    cases = []
    for part in re.split(r"^----.*\n", text, flags=re.M):
        labels = dict(re.findall(r"^(run|machine):(.*)$", part, re.M))
        source = re.sub(r"^(?:#|run:|machine:).*\n", "", part.partition("\n->")[0], flags=re.M)
        cases.append(Case(source.strip() + "\n", labels.get("run", "").split(), labels.get("machine", "").strip()))
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default="-", help="a graph, a schedule or a text test")
    parser.add_argument("--pass", dest="passes", default="", help="NAME[,NAME...]; instead of what the file names")
    parser.add_argument("--machine", default="")
    parser.add_argument("--options", default="")
    parser.add_argument("--list", action="store_true", help="print the names of all passes and stages")
    args = parser.parse_args()
    from flashover import _C
    from flashover.exc import FlashoverError

    if args.list:
        print("\n".join([*(row["name"] for row in _C.passes()), *_C.stages()]))
        return
    try:
        for case in cases_of(sys.stdin.read() if args.file == "-" else Path(args.file).read_text()):
            text = case.text
            for name in args.passes.split(",") if args.passes else case.passes:
                text = _C.run_pass(name, text, args.machine or case.machine, args.options or case.machine)
            print(text, end="")
    except (FlashoverError, OSError) as e:
        sys.exit(f"opt: {e}")


if __name__ == "__main__":
    main()
