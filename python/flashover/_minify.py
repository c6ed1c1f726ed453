"""The command minify: runs a program up to a wrong number, a crash or a failure of the compiler, and writes a script
of few operators that shows it by itself."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from flashover import _graph_file, _minify_worker, _reduce, _repro
from flashover import options as options_table
from flashover._summary import count, duration
from flashover._watched import clones

NOTHING_FOUND = 1
_ENOUGH_OF_A_STACK = 12  # lines
_OF_THE_PROCESS = ("cache", "cache_dir", "compile", "compile_deadline", "retreat")  # options that no script needs
_KINDS = {
    "wrong": "Raises while compiled code and eager differ.",
    "fails": "Raises while the compiler, or what it made, fails.",
    "dies": "The process dies while the fault is there.",
}


@dataclass
class Bench:
    """Tries parts of a graph, each in a process of its own; those are forked from one that has the libraries loaded."""

    folder: Path
    values: dict[str, str]
    kind: str  # the fault that is looked for
    seconds: float  # for each part
    symbols: bool = False  # sizes are such
    tried: int = 0
    says: str = ""  # of the last part that shows it
    _server: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> Bench:
        env = os.environ | {"FLASHOVER_CACHE_DIR": str(self.folder / "cache")}
        code = "from flashover._minify_worker import serve; serve()"
        self._server = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        self._pool = _graph_file.Pool(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def outcome(self, part: fx.GraphModule, given: list[Any]) -> dict[str, Any]:
        self.tried += 1
        folder = self.folder / f"part_{self.tried}"
        folder.mkdir()
        _graph_file.write(folder, part, given, self._pool, values=self.values, symbols=self.symbols)
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps([str(folder), self.seconds]) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            raise RuntimeError("minify: the process that tries parts of the graph has ended")
        return json.loads(answer)  # type: ignore[no-any-return]

    def shows(self, part: fx.GraphModule, given: list[Any]) -> bool:
        found = self.outcome(part, given)
        if found["kind"] == self.kind:
            self.says = found["says"]
        return bool(found["kind"] == self.kind)


def _record(folder: Path, given: argparse.Namespace) -> dict[str, str] | None:
    """Runs the program; what its first fault is. None: there was none in a captured graph, which is said."""
    code = (
        "import sys; from flashover._minify_worker import run_recorded as r; sys.exit(r(*sys.argv[1:3], sys.argv[3:]))"
    )
    command = [sys.executable, "-c", code, str(folder), given.script, *given.arguments]
    try:
        status = subprocess.run(command, stdout=sys.stderr, check=False, timeout=given.timeout).returncode
    except subprocess.TimeoutExpired:
        died = f"does not end within {given.timeout} s"
    else:
        if status == _minify_worker.FOUND:
            outcome = (folder / _minify_worker.OUTCOME).read_text(encoding="utf-8")
            return json.loads(outcome)  # type: ignore[no-any-return]
        died = f"dies by {signal.Signals(-status).name}" if status < 0 else ""
    if died and (folder / _graph_file.GRAPH).exists():
        return {"kind": "dies", "says": died}
    _say_none(folder, died or f"ended with status {status}")
    return None


def _say_none(folder: Path, ended: str) -> None:
    print(f"the program {ended}; no captured graph of it was wrong, failed or died", file=sys.stderr)
    stack = (folder / _minify_worker.STACK).read_text(encoding="utf-8", errors="replace").splitlines()
    for line in stack[:_ENOUGH_OF_A_STACK]:
        print(f"  {line}", file=sys.stderr)


@dataclass
class Minified:
    """Scripts that should show a fault, the plainest first, and how it was found."""

    texts: list[str]
    operators: int
    what: str


def _first(module: fx.GraphModule, inputs: list[Any], known: dict[fx.Node, Any], bench: Bench) -> fx.Node:
    """The first operator that has the fault. Of wrong numbers all values are asked for at once; where that hides it (it
    is a matter of what is fused), and for what dies, parts are looked for that show it."""
    nodes = _repro.operators(module)
    if bench.kind == "wrong":
        found = bench.outcome(_repro.with_outputs(module, nodes), inputs)
        if found["kind"] == "wrong":
            return nodes[int(found["index"])]
    return _reduce.first_operator(module, known, bench.shows)


def minimize(folder: Path, found: dict[str, str], given: argparse.Namespace) -> Minified | None:
    """The graph that lies in the folder, cut down. None: it does not show the fault by itself."""
    module, inputs, facts = _graph_file.read(folder, _graph_file.Pool(folder))
    parts = folder / "parts"
    parts.mkdir()
    deadline = time.monotonic() + given.seconds
    with Bench(parts, facts["values"], found["kind"], given.part_timeout) as bench:
        for bench.symbols in (True, False) if facts["symbols"] else (False,):
            if bench.shows(module, inputs):
                break
        else:
            print(
                f"the graph of {facts['name']} that {found['says']} does not do so by itself, with an empty cache: "
                "is it gone after `python -m flashover cache clear`?",
                file=sys.stderr,
            )
            return None
        with torch.no_grad():
            known = _repro.values(module, clones(inputs))
        node = _first(module, inputs, known, bench)
        found_part = _reduce.smallest_part(module, node, known, bench.shows, deadline)
        part, used = found_part or (module, inputs)
        plain, made_by = _repro.plainest(part, used, lambda values: bench.shows(part, values))
        source = _repro.operator_of(node)
        place = str(source.meta.get("stack_trace") or "")
        what = f"{source.target}{f' at {place}' if place else ''} {bench.says}"
        options = {k: v for k, v in options_table.typed(facts["values"]).items() if k not in _OF_THE_PROCESS}
        checked = [options, {**options, "crosscheck": 1}]  # the second one compares with fp64
        opening = f"What the minifier found in {facts['name']}: {what}"
        texts = [
            _repro.script(
                part, plain, made_by, opening, shows=_KINDS[found["kind"]], options=chosen, dynamic=bench.symbols
            )
            for chosen in (checked if found["kind"] == "wrong" else checked[:1])
        ]
        return Minified(texts, len(_repro.operators(part)), f"{what}; {count(bench.tried, 'part')} tried")


def _status_of(text: str, folder: Path, seconds: float) -> int | str:
    """What running a script as it is ends with."""
    file = folder / "candidate.py"
    file.write_text(text, encoding="utf-8")
    env = os.environ | {"FLASHOVER_CACHE_DIR": str(folder / "cache")}
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run([sys.executable, str(file)], env=env, capture_output=True, check=False, timeout=seconds)
        return done.returncode
    return "no end"


def minify(given: argparse.Namespace) -> int:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flashover-minify-") as name:
        folder = Path(name)
        found = _record(folder, given)
        if found is None:
            return NOTHING_FOUND
        print(f"{found['says']}: looking for the operators that do it", file=sys.stderr)
        minified = minimize(folder, found, given)
        if minified is None:
            return NOTHING_FOUND
        for text in minified.texts:
            if _status_of(text, folder, given.part_timeout):
                break
        else:
            print("the script does not show the fault by itself; it is written all the same", file=sys.stderr)
            text = minified.texts[0]
        Path(given.output).write_text(text, encoding="utf-8")
    taken = duration(time.monotonic() - start)
    print(f"{given.output}: {count(minified.operators, 'operator')}, {minified.what}, in {taken}")
    return 0
