"""Guard soundness: random programs; between two calls a random change to anything a program can read. The compiled call
must give what eager gives after every change, and must not compile again after a change that it cannot see.
`./x fuzz-guards [seconds]`, a slice in CI (test_fuzz_guards.py).

A program is a few features put together; a feature is a piece of state, a line that reads it, and ways to change it. It
lives in two worlds made from the same text: one runs eager, the other compiled; both are changed alike. Shapes of a
program: whole; with graph breaks between its features, where changes may happen in the midst of a call; its second half
in a method of its own, with a break inside; and each with a backward after the call.
"""

from __future__ import annotations

import search_path

import argparse
import gc
import json
import linecache
import os
import random
import re
import sys
import time
import types
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

os.environ["FLASHOVER_CHECK_GUARDS"] = "1"  # each check of guards is made twice: fast and plainly

import torch
from fuzz_state import version_of
from guard_features import FEATURES, INPUT_CHANGES, PROCESS, TORCH_READERS, Change, Feature, ProcessChange

import flashover

HEADER = """
import abc, builtins, collections, contextlib, contextvars, copy, dataclasses, enum, functools, gc, itertools, logging
import math, operator, os, sys, threading, types, typing, weakref
import torch
import torch.nn.functional as F
from torch import nn
"""


@dataclass
class World:
    """One copy of a program: its globals, its model and the inputs of the next call."""

    space: dict[str, Any]
    model: Any
    inputs: dict[str, Any]
    call: Any
    midway: list[tuple[str, int]] = field(default_factory=list)  # changes to be made in the midst of the next call
    failed: str = ""  # why the last of those could not be made

    def change(self, code: str, seed: int) -> str:
        self.space.update(m=self.model, i=self.inputs, r=random.Random(seed))
        try:
            with torch.random.fork_rng([]):
                torch.manual_seed(seed)
                exec(code, self.space)
            return ""
        except Exception as e:
            return f"{type(e).__name__}: {e}"


# What both worlds read: midway through a call of one it would change for the other's.
SHARED = re.compile(r"os\.environ|sys\.modules|logging\.disable|\.register\(")  # (abstract classes have one clock)
# How a program is laid out.
SHAPES = ("whole", "breaks", "midway", "nested", "nested midway")


def program(features: list[Feature], readers: list[str], shape: str = "whole") -> str:
    lines = [HEADER]
    for f in features:
        lines.append(f.top)
    indent = "    "
    body: list[str] = []
    broken = "flashover.graph_break()" if shape == "breaks" else "x = MIDWAY(x)"
    inner: list[str] = []  # the method's, if there is one
    for k, f in enumerate(features):
        part = f.use.strip("\n").splitlines()
        if k < len(readers):
            part.append(readers[k])
        if shape in ("breaks", "midway"):
            part = [broken, *part] if k else part
        elif shape != "whole" and k >= len(features) // 2:
            inner += [*part, broken] if len(inner) == 0 else part
            continue
        body += part
    if inner:
        lines.append("def half(self, x, y, k, rest, flag, named):")
        lines += [indent + line for line in inner] + [indent + "return x"]
        body.append("x = half(self, x, y, k, rest, flag, named)")
    lines.append("class Net(nn.Module):")
    lines.append("    def __init__(self):")
    lines.append("        super().__init__()")
    for f in features:
        lines += [indent * 2 + line for line in f.init.strip("\n").splitlines()]
    lines.append("    def forward(self, x, y=None, k=1.5, *rest, flag=None, **named):")
    lines += [indent * 2 + line for line in body]
    lines.append("        return x")
    lines.append("def run(x, y=None, k=1.5, *rest, flag=None, **named):")
    lines.append("    self = THE")
    lines += [indent + line for line in body]
    lines.append("    return x")
    return "\n".join(lines) + "\n"


def make_world(text: str, seed: int, mark: str, as_function: bool) -> World:
    name = f"<guards {seed} {mark}>"
    module = types.ModuleType("fuzzed_world")
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    torch.manual_seed(seed)
    sys.modules["fuzzed_world"] = module  # dataclasses looks there
    module.flashover = flashover  # type: ignore[attr-defined]
    exec(compile(text, name, "exec"), module.__dict__)
    torch.manual_seed(seed)
    model = module.Net()  # type: ignore[attr-defined]
    module.THE = model  # type: ignore[attr-defined]
    inputs = {"args": [torch.randn(3, 4)], "kwargs": {}}
    world = World(module.__dict__, model, inputs, module.run if as_function else model)  # type: ignore[attr-defined]

    def midway(x: Any) -> Any:
        while world.midway:
            world.failed = world.change(*world.midway.pop())
        return x

    module.MIDWAY = flashover.disable(midway)  # type: ignore[attr-defined]
    return world


def outcome(world: World, call: Any) -> Any:
    torch.clear_autocast_cache()  # of weights that were changed in place meanwhile
    try:
        return call(*world.inputs["args"], **world.inputs["kwargs"])
    except Exception as e:
        return e


def differ(a: Any, b: Any, where: str = "result") -> str:
    """In words, or "" if both are the same."""
    if isinstance(a, BaseException) or isinstance(b, BaseException):
        return "" if type(a) is type(b) else f"{where}: {a!r} but compiled {b!r}"
    if type(a) is not type(b):
        if type(a).__name__ == type(b).__name__ and type(a).__module__ == "fuzzed_world":
            return ""
        return f"{where}: a {type(a).__name__} but compiled a {type(b).__name__}"
    if isinstance(a, torch.Tensor):
        for what in ("dtype", "shape", "layout", "requires_grad", "device"):
            if getattr(a, what) != getattr(b, what):
                return f"{where}: {what} {getattr(a, what)} but compiled {getattr(b, what)}"
        if (a.grad_fn is None) != (b.grad_fn is None):
            return f"{where}: grad_fn {a.grad_fn} but compiled {b.grad_fn}"
        if a.layout != torch.strided:
            return ""
        # A gradient's follow the one that came in: compiled backwards take it as the result lies.
        if a.numel() > 1 and a.stride() != b.stride() and not where.startswith("gradient"):
            return f"{where}: strides {a.stride()} but compiled {b.stride()}"
        x, y = a.detach(), b.detach()
        if x.dtype.is_floating_point or x.dtype.is_complex:
            if not torch.allclose(x.double() if not x.is_complex() else x, y.double() if not x.is_complex() else y,
                                  rtol=2e-2 if x.dtype.itemsize < 4 else 1e-4, atol=1e-4, equal_nan=True):  # fmt: skip
                return f"{where}: {x.tolist()} but compiled {y.tolist()}"
        elif not torch.equal(x, y):
            return f"{where}: {x.tolist()} but compiled {y.tolist()}"
        return ""
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{where}: length {len(a)} but compiled {len(b)}"
        parts = (differ(p, q, f"{where}[{n}]") for n, (p, q) in enumerate(zip(a, b, strict=False)))
        return next(filter(None, parts), "")
    if isinstance(a, dict):
        if list(map(str, a)) != list(map(str, b)):
            return f"{where}: keys {list(a)} but compiled {list(b)}"
        parts = (differ(p, q, f"{where}[{n!r}]") for (n, p), q in zip(a.items(), b.values(), strict=False))
        return next(filter(None, parts), "")
    if isinstance(a, (int, float, str, bool, bytes)):
        return "" if a == b or a != a else f"{where}: {a!r} but compiled {b!r}"
    return ""


def versions(world: World) -> list[int]:
    tensors = [t for t in world.inputs["args"] if isinstance(t, torch.Tensor)]
    return [-1 if (version := version_of(t)) is None else version for t in tensors]


def gradients(world: World, result: Any, before: list[int]) -> Any:
    """Of the call's result, after a backward; None if there is none to be had. before: versions before the call. For an
    argument that the call wrote there is none (docs/user/training.md, "What is not supported"): all results come from
    one node."""
    if not isinstance(result, torch.Tensor) or not result.requires_grad or result.is_complex():
        return None
    arguments = [t for t in world.inputs["args"] if isinstance(t, torch.Tensor)]
    unwritten = [t for t, was, now in zip(arguments, before, versions(world), strict=True) if was == now]
    leaves = [t for t in [*world.model.parameters(), *unwritten] if t.requires_grad]
    try:
        return torch.autograd.grad(result.double().sum(), leaves, allow_unused=True) if leaves else None
    except Exception as e:
        return e


def visible(world: World) -> dict[str, Any]:
    """State that the program may have written."""
    out: dict[str, Any] = {"inputs": world.inputs, "tensors": dict(world.model.state_dict())}
    for name, value in world.space.items():
        if name.isupper() and name != "THE" and isinstance(value, (float, str, list, dict)):
            out[name] = value
    return out


def counters(world: World) -> str:
    """Numbers of the program and its objects: what counts calls is another one on the next call, and compiles again."""
    numbers = {
        k: v for k, v in world.space.items() if k[0] != "_" and k != "i" and isinstance(v, (int, float, list, dict))
    }
    own = {k: v for k, v in world.space.items() if type(v).__module__ == "fuzzed_world" and hasattr(v, "__dict__")}
    plain = {
        k: {n: v for n, v in vars(o).items() if isinstance(v, (int, float, str, list, dict))} for k, o in own.items()
    }
    return repr((numbers, plain))


@dataclass
class Report:
    sequences: int = 0
    calls: int = 0
    hits: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    eager: Counter[str] = field(default_factory=Counter)


def run_sequence(
    seed: int, report: Report, only: str = "", steps: int = 6, verbose: bool = False, shape: str = "whole"
) -> None:
    """shape: one of SHAPES, or "any"."""
    rng = random.Random(seed)
    shape = random.Random(seed + 1).choice(SHAPES) if shape == "any" else shape
    backward = random.Random(seed + 2).random() < 0.3
    few = random.Random(seed + 3).random() < 0.3  # changes, each made often: what keeps changing is checked another way
    named = [f for f in FEATURES if only in f.name] if only else FEATURES
    features = rng.sample(named, k=min(len(named), rng.randint(1, 4)))
    readers = rng.sample(TORCH_READERS, k=rng.randint(0, 2))
    as_function = rng.random() < 0.25
    text = program(features, readers, shape)
    eager, fast = (make_world(text, seed, mark, as_function) for mark in ("eager", "fast"))
    compiled = flashover.compile(fast.call, backend="eager", options={"recompile_limit": 64})
    changes: list[Change] = [c for f in features for c in f.changes]
    if few and changes:
        changes, steps = rng.choices(changes, k=2), 2 * steps
    undo: list[str] = []
    precisions = fp32_precisions()
    process_space: dict[str, Any] = {}
    exec(HEADER, process_space)
    done: list[str] = []
    report.sequences += 1

    def fail(what: str) -> None:
        steps_text = "\n    ".join(done)
        report.failures.append(
            f"seed {seed}: {what}\n  {shape}, features {[f.name for f in features]} {readers}\n    {steps_text}"
        )
        if verbose:
            print(report.failures[-1], flush=True)

    def both() -> Any:
        report.calls += 1
        undisturbed = not eager.midway
        before = versions(eager), versions(fast)
        expected = outcome(eager, eager.call)
        got = outcome(fast, compiled)
        problem = differ(expected, got)
        if not problem and eager.failed != fast.failed and not (eager.failed and fast.failed):
            problem = f"the change midway differs: {eager.failed!r}, {fast.failed!r}"
        if not problem and not isinstance(expected, Exception):
            problem = differ(visible(eager), visible(fast), "state")
        if not problem and backward and undisturbed:
            wanted = gradients(eager, expected, before[0])
            if not isinstance(wanted, Exception):  # such as: changed in place
                problem = differ(wanted, gradients(fast, got, before[1]), "gradient")
        if problem:
            fail(problem)
        # The graph behind the result goes: it would keep what autograd knew of parameters that are about to change.
        return None if problem else expected if isinstance(expected, Exception) else True

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            last = both()
            for _ in range(steps):
                if last is None:
                    return
                pick = rng.random() * (0.7 if few else 1)
                change: Change | ProcessChange
                change_seed = rng.randrange(1 << 30)
                settled = False
                if rng.random() < 0.5:  # what the last call wrote has been seen, and writes nothing new
                    so_far, was = flashover.compile_stats()["recompiles"], counters(eager)
                    last = both()
                    settled = last is not None and flashover.compile_stats()["recompiles"] == so_far
                    settled = settled and counters(eager) == was
                    if last is None:
                        return
                if pick < 0.62 and changes:
                    change = rng.choice(changes)
                elif pick < 0.80:
                    change = rng.choice(INPUT_CHANGES)
                else:
                    change = rng.choice(PROCESS)
                done.append(f"{change.kind}: {change.code}")
                report.kinds[change.kind] += 1
                if isinstance(change, ProcessChange):
                    process_space["r"] = random.Random(change_seed)
                    before_undo = dict(process_space)
                    try:
                        exec(change.code, process_space)
                    except RuntimeError:  # torch refuses a mix of its two ways to set a precision
                        process_space.update(before_undo)
                        continue
                    undo.append(change.undo)
                elif "midway" in shape and not SHARED.search(change.code) and rng.random() < 0.5:
                    done[-1] = "midway: " + done[-1]
                    for world in (eager, fast):
                        world.midway, world.failed = [(change.code, change_seed)], ""
                    settled = False
                else:
                    a, b = eager.change(change.code, change_seed), fast.change(change.code, change_seed)
                    if a != b and not (a and b):
                        fail(f"the change itself differs: {a!r}, {b!r}")
                        return
                    if a:
                        done[-1] += f"   -> {a}"
                        continue
                before = flashover.compile_stats()
                raised_before = isinstance(last, Exception)
                last = both()
                after = flashover.compile_stats()
                again = after["recompiles"] - before["recompiles"]
                # What each call makes anew is compiled for once more when it is seen to be another one.
                anew = any("of the call" in f.name for f in features)
                if last is not None and change.same and settled and again and not raised_before and not anew:
                    entries = compiled._flashover_callable.entries() if not as_function else compiled.entries()
                    fail(f"needless recompile: {entries[0]['recompiled_for']}")
                    return
                if not again:
                    report.hits += 1
        finally:
            for code in reversed(undo):
                exec(code, process_space)
            set_precisions(precisions)
            inner = compiled if as_function else compiled._flashover_callable
            for e in inner.entries():
                if not e["compiled"]:
                    report.eager[e["reason"]] += 1
            for mark in ("eager", "fast"):
                linecache.cache.pop(f"<guards {seed} {mark}>", None)


# Some together are an error to torch, which then raises where they are asked for or set.
PRECISIONS = [("generic", "all"), *((b, o) for b in ("cuda", "mkldnn") for o in ("all", "conv", "rnn", "matmul"))]


def fp32_precisions() -> list[str]:
    return [torch._C._get_fp32_precision_getter(*of) for of in PRECISIONS]


def set_precisions(values: list[str]) -> None:
    for of, value in zip(PRECISIONS, values, strict=True):
        torch._C._set_fp32_precision_setter(*of, value)


def kinds() -> set[str]:
    listed: list[Any] = [c for f in FEATURES for c in f.changes] + INPUT_CHANGES + PROCESS
    return {c.kind for c in listed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--start", "--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1 << 40, help="so many seeds")
    parser.add_argument("--only", default="", help="features whose name has this in it")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--shape", default="any", choices=[*SHAPES, "any"])
    parser.add_argument("--failures", type=int, default=20, help="stop after so many")
    args = parser.parse_args()
    torch.set_num_threads(1)
    report, begin = Report(), time.monotonic()
    seed = args.start
    while time.monotonic() - begin < args.seconds and report.sequences < args.count:
        if os.environ.get("FUZZ_SEEDS"):
            print("seed", seed, flush=True)
        run_sequence(seed, report, args.only, args.steps, verbose=True, shape=args.shape)
        seed += 1
        if seed % 200 == 0:
            flashover.reset()
            gc.collect()
        if len(report.failures) >= args.failures:
            break
    for reason, n in report.eager.most_common(25):
        print(f"  eager x{n}: {reason}")
    counts = {
        "seeds": [args.start, seed],
        "sequences": report.sequences,
        "calls": report.calls,
        "served without compiling": report.hits,
        "kinds": len(report.kinds),
        "kinds in all": len(kinds()),
        "failures": len(report.failures),
        "failing seeds": [int(f.split()[1].rstrip(":")) for f in report.failures],
    }
    print(json.dumps(counts), flush=True)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
