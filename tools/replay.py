"""Process replay: does a refactor still make the same kernels and plans?

    ./x replay record      # on the commit before: trace the zoo's models (small) and keep graphs, kernels and plans
    in build/replay
    ./x replay             # after: compile the kept graphs again and show what differs

The kept graphs are the input, so a change of capture does not show here; a change of any pass, the scheduler, the
code generator or
the plan does. Exits with 1 when something differs.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "replay"
sys.path.insert(0, str(ROOT / "benchmarks"))


def stages(graph: str) -> dict[str, str]:
    """Stage name -> printed form of everything after the trace; kernels built anew, nothing from the disk cache."""
    from flashover import _C

    return dict(_C.compile_text(graph, {"cache": "False"}, texts=True).texts)


def record(names: list[str]) -> None:
    import torch
    import zoo

    import flashover

    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            model, args, kwargs = zoo.make(name, True)
            explanation = flashover.explain(model)(*args, **kwargs)
        graphs: list[dict[str, Any]] = []
        for entry in explanation.graphs:
            traced = dict(entry["texts"])["traced"]
            graphs.append({"traced": traced, "stages": stages(traced)})
        (FOLDER / f"{name}.json").write_text(json.dumps(graphs))
        print(f"{name}: {len(graphs)} graph(s)")


def compare(names: list[str], lines: int) -> bool:
    kept = [p for p in sorted(FOLDER.glob("*.json")) if not names or p.stem in names]
    if not kept:
        sys.exit(f"replay: nothing recorded in {FOLDER}; run ./x replay record on the commit to compare with")
    same = True
    for path in kept:
        differing = []
        for i, graph in enumerate(json.loads(path.read_text())):
            now = stages(graph["traced"])
            for stage in graph["stages"].keys() | now.keys():
                before, after = graph["stages"].get(stage, ""), now.get(stage, "")
                if before != after:
                    differing.append(f"graph {i} {stage}")
                    diff = difflib.unified_diff(
                        before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=1
                    )
                    print("\n".join(list(diff)[:lines]))
        print(f"{path.stem}: {'same' if not differing else 'differs in ' + ', '.join(sorted(differing))}")
        same &= not differing
    return same


def main() -> None:
    import zoo

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=["record", "compare"], default="compare")
    parser.add_argument("--models", default="", help="names with commas between; default: all of benchmarks/zoo.py")
    parser.add_argument("--lines", type=int, default=40, help="lines of each difference to show")
    args = parser.parse_args()
    names = [n for n in args.models.split(",") if n]
    if args.action == "record":
        record(names or list(zoo.ALL))
    elif not compare(names, args.lines):
        sys.exit(1)


if __name__ == "__main__":
    main()
