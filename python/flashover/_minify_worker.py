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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from flashover import _compile, _crosscheck, _graph_file, _script
from flashover._compiled_module import callable_of, compile_module

OUTCOME, STACK = "outcome.json", "stack.txt"
FOUND = 86  # the exit status of a program that was ended at a fault
_FAULTS = ("said", "raises")  # causes of eager calls that a sound compiler does not have


def failure_of(fast: Any) -> str:
    """'' or why the compiler, or what it made, failed and eager took its place."""
    records = callable_of(fast).tallies()["eager"]
    reason = next((r["reason"] for r in records if r["cause"] in _FAULTS), "")
    return reason.partition("\n")[0]


class _Unwatched(_compile.Settings):
    """What is compiled to be watched: by the pipeline, and not by the recorder again."""

    _backend_for = _compile.Settings._own_backend_for


def _compiler(values: dict[str, str], made: list[Any]) -> Callable[[fx.GraphModule], Any]:
    settings = _Unwatched(values=values).at_once()

    def compile_graph(module: fx.GraphModule) -> Any:
        made.append(compile_module(module, settings))
        return made[-1]

    return compile_graph


def outcome_of(module: fx.GraphModule, inputs: Sequence[Any], values: dict[str, str]) -> dict[str, Any]:
    """What becomes of a graph: kind "" (sound), "wrong", "fails" or "raises" (eager does, too), and how it shows;
    where it is wrong also the index of the first output that is."""
    made: list[Any] = []
    try:
        found = _crosscheck.Checker(_compiler(values, made)).difference(module, inputs)
    except Exception as error:
        return {"kind": "raises", "says": f"raises {type(error).__name__}: {error}"}
    if made and (failed := failure_of(made[-1])):
        return {"kind": "fails", "says": failed}
    return {"kind": "wrong", "says": found.what, "index": found.index} if found else {"kind": "", "says": ""}


class Recorder:
    """A backend whose graphs lie in `folder` while they are compiled and run. The first fault ends the process."""

    compiles_backwards = True

    def __init__(self, folder: Path, name: str, values: dict[str, str]) -> None:
        self._folder, self._name, self._values = folder, name, values
        self.__name__ = "minify"

    def __call__(self, module: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        made: list[Any] = []
        fast = _compiler(self._values, made)(module)
        lock = threading.Lock()  # random numbers and the folder are the process's

        def run(*inputs: Any) -> Any:
            with torch.no_grad(), lock:
                return self._watched(module, fast, inputs)

        return run

    def _watched(self, module: fx.GraphModule, fast: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        self._note(module, inputs)
        state, before = _crosscheck._State(), _crosscheck._clones(inputs)
        eager = _crosscheck._flat(module(*_crosscheck._clones(inputs)))
        state.restore()
        result = fast(*inputs)
        if failed := failure_of(fast):
            self._end({"kind": "fails", "says": failed})
        found = _crosscheck.first_difference(_crosscheck._flat(result), eager, None)
        if found:
            after = _crosscheck._State()
            exact = _crosscheck._exact(module, before, state)
            if found := _crosscheck.first_difference(_crosscheck._flat(result), eager, exact):
                self._end({"kind": "wrong", "says": found.what})
            after.restore()
        (self._folder / _graph_file.GRAPH).unlink(missing_ok=True)
        return result

    def _note(self, module: fx.GraphModule, inputs: Sequence[Any]) -> None:
        (self._folder / _graph_file.GRAPH).unlink(missing_ok=True)
        try:
            pool = _graph_file.Pool(self._folder)
            _graph_file.write(self._folder, module, inputs, pool, name=self._name, values=self._values)
        except _graph_file.NotWritable as error:
            print(f"flashover: minify: a graph of {self._name} is left out: {error}", file=sys.stderr)

    def _end(self, outcome: dict[str, str]) -> None:
        (self._folder / OUTCOME).write_text(json.dumps(outcome), encoding="utf-8")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(FOUND)


def run_recorded(folder: str, script: str, arguments: list[str]) -> int:
    """Runs a program up to its first fault."""
    to = Path(folder)

    def recorder(settings: _compile.Settings, name: str) -> tuple[str, Any]:
        values = {k: v for k, v in settings.values.items() if k != "crosscheck"}
        return "minify", Recorder(to, name, values)

    _compile.instead_of_backends = recorder
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
    outcome = outcome_of(module, inputs, facts["values"])
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
