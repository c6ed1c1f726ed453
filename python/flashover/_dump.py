"""FLASHOVER_DUMP=folder: a program for each captured graph that runs it alone, and an index of all that lies there."""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from flashover import _report, _reporting
from flashover import options as options_table
from flashover._page_parts import highlighted, text

MOST_SOURCE = 200_000  # characters of a kernel that the index shows
_NUMBERED = re.compile(r"(\d{3,})_(.+)")
_CONSTANT = 3  # graph::InputKind::kConstant


def folder() -> str:
    """Where dumps go; empty: there are none."""
    return os.environ.get("FLASHOVER_DUMP", "")


def write_repro(
    number: int,
    name: str,
    description: dict[str, Any],
    tensors: Sequence[torch.Tensor],
    values: dict[str, str],
    symbols: bool,
) -> None:
    """The core calls this before it compiles a graph, so the program is there if that crashes. symbols: sizes were, and
    stand here as numbers."""
    from flashover import _repro, fx_graph

    kinds = [kind for _, kind, _ in description["inputs"]]
    constants = [t for t, kind in zip(tensors, kinds, strict=True) if kind == _CONSTANT]
    given: list[Any] = [t for t, kind in zip(tensors, kinds, strict=True) if kind != _CONSTANT]
    with torch.no_grad():
        module = fx_graph.graph_module(description, constants)
        if module is None:
            return
        plain = _repro.plain_all(given)
        options = {k: v for k, v in options_table.typed(values).items() if k not in ("cache_dir", "compile")}
        what = f"Graph {number} of {name}, as it was captured; its inputs are like those of the call."
        program = _repro.script(module, given, plain and plain[1], what, options=options, dynamic=symbols)
    safe = re.sub(r"\W", "_", name[:60], flags=re.ASCII)
    to = Path(folder()) / f"{number:03}_{safe}.repro.py"
    to.parent.mkdir(mode=0o700, exist_ok=True)
    # Links in the folder are not followed (docs/user/environment.md).
    with os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(program)


def _link(file: str, words: str) -> str:
    return f'<a href="{text(file)}">{text(words)}</a>'


def _kernel(to: Path, file: str) -> str:
    source = (to / file).read_text(encoding="utf-8", errors="replace")
    body = highlighted(source[:MOST_SOURCE])
    return f"<details><summary>{text(file)}</summary><p>{_link(file, 'the file')}</p><pre>{body}</pre></details>"


def files_part(to: Path) -> str:
    """The files of each graph: its program, its kernels, its stages in their order."""
    by_number: dict[str, list[str]] = defaultdict(list)
    for name in sorted(e.name for e in os.scandir(to) if e.is_file(follow_symlinks=False)):
        if (match := _NUMBERED.fullmatch(name)) and not name.endswith(".html"):
            by_number[match[1]].append(name)
    out = []
    for number, names in sorted(by_number.items(), key=lambda item: int(item[0])):
        programs = [n for n in names if n.endswith(".repro.py")]
        kernels = [n for n in names if ".kernel_" in n]
        stages = [n for n in names if n not in programs and n not in kernels]
        title = programs[0][len(number) + 1 : -len(".repro.py")] if programs else ""
        lines = [f"<h3>Graph {number} {text(title)}</h3>"]
        lines += [f"<p>{_link(n, n)}: a program that runs it alone, compiled and not</p>" for n in programs]
        lines += [_kernel(to, n) for n in kernels]
        words = [_link(n, n.removeprefix(f"{number}_").removesuffix(".txt")) for n in stages]
        lines.append(f"<details><summary>{len(stages)} stages</summary><p>{'<br>'.join(words)}</p></details>")
        out.append("".join(lines))
    return f"<h2>Graphs</h2>{''.join(out)}" if out else ""


def start_from_environment() -> None:
    """When the package is imported."""
    if not folder():
        return
    collected, process, to = _reporting.of_environment(keep_text=True), os.getpid(), Path(folder()).absolute()

    def finish() -> None:
        if os.getpid() != process or not to.is_dir():
            return
        try:
            _report.write(collected, to, more=files_part)
        except OSError as error:
            print(f"flashover: FLASHOVER_DUMP: cannot write to {to}: {error}", file=sys.stderr)

    atexit.register(finish)
