"""The processes of the minifier that may die: one runs the program and notes each captured graph before it is compiled
and run; others, forked from one that has done nothing yet, try one part of a graph each."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from flashover import _compile, _crosscheck, _graph_file, _script
from flashover._compiled_module import callable_of
from flashover._watched import RandomState, Run, WatchedGraph

OUTCOME, STACK = "outcome.json", "stack.txt"
FOUND = 86  # the exit status of a program that was ended at a fault
_FAULTS = ("said", "raises")  # causes of eager calls that a sound compiler does not have


def failure_of(fast: Any) -> str:
    """'' or why the compiler, or what it made, failed and eager took its place."""
    records = callable_of(fast).tallies()["eager"]
    reason = next((r["reason"] for r in records if r["cause"] in _FAULTS), "")
    return reason.partition("\n")[0]


def outcome_of(module: fx.GraphModule, inputs: Sequence[Any], values: dict[str, str], symbols: bool) -> dict[str, Any]:
    """What becomes of a graph: kind "" (sound), "wrong", "fails" or "raises" (eager does, too), and how it shows;
    where it is wrong also the index of the first output that is. symbols: sizes are such."""
    made: list[Any] = []

    def compile_graph(part: fx.GraphModule, of_symbols: bool) -> Any:
        made.append(_compile.compile_part(values, part, of_symbols))
        return made[-1]

    try:
        found = _crosscheck.Checker(compile_graph, symbols).difference(module, inputs)
    except Exception as error:
        return {"kind": "raises", "says": f"raises {type(error).__name__}: {error}"}
    if made and (failed := failure_of(made[-1])):
        return {"kind": "fails", "says": failed}
    return {"kind": "wrong", "says": found.what, "index": found.index} if found else {"kind": "", "says": ""}


class Recorder:
    """Watches a callable: a graph lies in `folder` while it is compiled and run. The first fault ends the process."""

    def __init__(self, folder: Path, name: str, values: dict[str, str]) -> None:
        self.folder, self.name, self.values = folder, name, values

    def graph(self, description: dict[str, Any] | None, inputs: Sequence[Any]) -> _Recorded:
        recorded = _Recorded(self, WatchedGraph(description))
        recorded.note(inputs)
        return recorded


class _Recorded:
    def __init__(self, recorder: Recorder, graph: WatchedGraph) -> None:
        self._recorder, self._graph = recorder, graph
        self._file = recorder.folder / _graph_file.GRAPH
        self._lock = threading.Lock()  # random numbers and the folder are the process's

    def note(self, inputs: Sequence[Any]) -> None:
        with self._lock, torch.no_grad():
            self._file.unlink(missing_ok=True)
            if not self._graph:
                return
            state = RandomState()
            try:
                self._write(inputs)
            finally:
                state.restore()

    def _write(self, inputs: Sequence[Any]) -> None:
        r = self._recorder
        try:
            module = self._graph.module(inputs)
            given = None if module is None else self._graph.likely_inputs(module, inputs)
            if module is None or given is None:
                raise _graph_file.NotWritable("an operator or a size has no form in torch.fx")
            facts = {"name": r.name, "values": r.values, "symbols": self._graph.symbols}
            _graph_file.write(r.folder, module, given, _graph_file.Pool(r.folder), **facts)
        except _graph_file.NotWritable as error:
            print(f"flashover: minify: a graph of {r.name} is left out: {error}", file=sys.stderr)

    def failed(self, why: str) -> None:
        if self._graph and not self._graph.symbols:  # (else it is compiled for numbers next)
            self._end({"kind": "fails", "says": why.partition("\n")[0]})

    def call(self, inputs: Sequence[Any], compiled: Run, eager: Run) -> None:
        self.note(inputs)
        if not self._graph:
            return
        with self._lock:
            comparison = _crosscheck.Comparison(self._graph, inputs)
            if found := comparison.run(compiled, eager):
                self._end({"kind": "wrong", "says": f"{self._graph.says(found.index)}: {found.what}"})
            if comparison.raised:
                self._end({"kind": "fails", "says": comparison.raised})

    def ended(self) -> None:
        self._file.unlink(missing_ok=True)

    def _end(self, outcome: dict[str, str]) -> None:
        (self._recorder.folder / OUTCOME).write_text(json.dumps(outcome), encoding="utf-8")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(FOUND)


def run_recorded(folder: str, script: str, arguments: list[str]) -> int:
    """Runs a program up to its first fault."""
    to = Path(folder)

    def recorder(settings: _compile.Settings, name: str) -> Recorder:
        return Recorder(to, name, {k: v for k, v in settings.values.items() if k != "crosscheck"})

    _compile.instead_of_watchers = recorder
    with open(to / STACK, "w", encoding="utf-8") as file:
        faulthandler.enable(file)
        status = _script.run_program(script, arguments)
        faulthandler.disable()
    return status


def _wait(child: int, seconds: float) -> str:
    """'' once it has ended by itself, else how it died."""
    end = time.monotonic() + seconds
    pause = 0.002
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"does not end within {seconds:.0f} s"
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"dies by {signal.Signals(-code).name}"
    return f"ends the process with status {code}" if code else ""


def _try(folder: Path) -> None:
    """In a process of its own. Parts of one graph share the tensors that lie beside their folders."""
    module, inputs, facts = _graph_file.read(folder, _graph_file.Pool(folder.parent))
    outcome = outcome_of(module, inputs, facts["values"], facts["symbols"])
    (folder / OUTCOME).write_text(json.dumps(outcome), encoding="utf-8")


def serve() -> None:
    """Tries the graphs whose folders stdin names, a JSON line each: [folder, seconds]. Answers with its outcome."""
    for line in sys.stdin:
        folder, seconds = json.loads(line)
        child = os.fork()
        if not child:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            try:
                _try(Path(folder))
            except BaseException as error:
                (Path(folder) / OUTCOME).write_text(json.dumps({"kind": "raises", "says": repr(error)}))
            os._exit(0)
        died = _wait(child, seconds)
        written = Path(folder) / OUTCOME
        outcome = {"kind": "dies", "says": died} if died else json.loads(written.read_text(encoding="utf-8"))
        print(json.dumps(outcome), flush=True)
