"""Commands that run a program as `python script.py` would: explain and bench."""

from __future__ import annotations

import argparse
import functools
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

import flashover
from flashover import _report, _reporting
from flashover._compile import original_of
from flashover._summary import duration

COMPILERS = ("eager", "torch.compile", "flashover")


def run_program(script: str, arguments: list[str]) -> int:
    """Its exit status; what it raised is printed."""
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stopped:
        if isinstance(stopped.code, str):
            print(stopped.code, file=sys.stderr)
        return stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def explain(given: argparse.Namespace) -> int:
    collected = _reporting.start(keep_text=True)
    status = run_program(given.script, given.arguments)
    _reporting.stop()
    print("\n".join(_report.summaries(collected)))
    if given.save and (folder := _report.write(collected, given.save)):
        print(f"the report is {folder / 'index.html'}")
    return status


class Timed:
    """The times of one callable's calls."""

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.name, self.call = name, call
        self.seconds: list[float] = []
        functools.update_wrapper(self, call, updated=())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return self.call(*args, **kwargs)
        finally:
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.synchronize()
            self.seconds.append(time.perf_counter() - start)


def _compile_by(compiler: str, made: list[Timed], real: Callable[..., Any]) -> Callable[..., Any]:
    """What stands for flashover.compile while a program is timed."""

    def by(target: Any, arguments: dict[str, Any]) -> Any:
        if compiler == "flashover":
            return real(target, **arguments)
        if compiler == "eager":
            return target
        own = {k: v for k, v in arguments.items() if k in ("fullgraph", "dynamic", "mode")}
        return torch.compile(target, **own)

    def compile(model: Any = None, **arguments: Any) -> Any:
        if model is None:
            return lambda target: compile(target, **arguments)
        model = original_of(model)
        if isinstance(model, torch.nn.Module):  # the module itself, called through what is timed
            timed = Timed(type(model).__name__, by(model._call_impl, arguments))
            model._compiled_call_impl = timed  # type: ignore[assignment]
        elif callable(model) and not isinstance(model, type):
            timed = Timed(getattr(model, "__qualname__", type(model).__name__), by(model, arguments))
        else:
            return real(model, **arguments)
        made.append(timed)
        return model if isinstance(model, torch.nn.Module) else timed

    return compile


def run_timed(compiler: str, to: str, script: str, arguments: list[str]) -> int:
    """In a process of its own: the program by one compiler; times as JSON into a file."""
    made: list[Timed] = []
    flashover.compile = _compile_by(compiler, made, flashover.compile)
    start = time.perf_counter()
    status = run_program(script, arguments)
    whole = time.perf_counter() - start
    with open(to, "w", encoding="utf-8") as file:
        json.dump({"whole": whole, "calls": [{"name": t.name, "seconds": t.seconds} for t in made]}, file)
    return status


def _row(name: str, calls: dict[str, list[float]]) -> str:
    """A callable's median call by each compiler, without the first one; the first by itself."""
    cells = []
    eager = statistics.median(calls["eager"][1:] or calls["eager"]) if calls.get("eager") else None
    for compiler, seconds in calls.items():
        if not seconds:
            cells.append(f"{'-':>30}")
            continue
        usual = statistics.median(seconds[1:] or seconds)
        ratio = f" {eager / usual:5.2f}x" if eager and compiler != "eager" else " " * 7
        cells.append(f"{duration(usual):>9}{ratio} (1st {duration(seconds[0]):>8})")
    return f"{name[:24]:24}" + "".join(cells)


def bench(given: argparse.Namespace) -> int:
    wanted = given.only.split(",") if given.only else list(COMPILERS)
    if unknown := set(wanted) - set(COMPILERS):
        print(f"no compiler {', '.join(sorted(unknown))}; there are: {', '.join(COMPILERS)}", file=sys.stderr)
        return 2
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="flashover-bench-") as folder:
        for compiler in wanted:
            to = os.path.join(folder, f"{compiler}.json")
            code = (
                "import sys; from flashover._script import run_timed; sys.exit(run_timed(*sys.argv[1:4], sys.argv[4:]))"
            )
            command = [sys.executable, "-c", code, compiler, to, given.script, *given.arguments]
            done = subprocess.run(command, stdout=sys.stderr, check=False)
            if done.returncode:
                print(f"{compiler}: the program ended with status {done.returncode}", file=sys.stderr)
                return 1
            with open(to, encoding="utf-8") as file:
                results[compiler] = json.load(file)
    print(f"{'':24}" + "".join(f"{compiler:>30}" for compiler in results))
    print(f"{'the whole program':24}" + "".join(f"{duration(r['whole']):>30}" for r in results.values()))
    names = [c["name"] for c in results[wanted[0]]["calls"]]
    for i, name in enumerate(names):
        print(_row(name, {k: r["calls"][i]["seconds"] if i < len(r["calls"]) else [] for k, r in results.items()}))
    if not names:
        print("the program calls nothing that flashover.compile made")
    return 0
