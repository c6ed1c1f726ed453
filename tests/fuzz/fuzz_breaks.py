"""Metamorphic programs: random Python with graph breaks put in at random places, wrapped in closures, with and try
blocks, loops and inlined calls, must give what it gives uncompiled: `./x fuzz-breaks [seconds]`, a slice in CI.
"""

from __future__ import annotations

import search_path

import argparse
import io
import linecache
import random
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import torch
from comparing import differ

import flashover

HEADER = """
import contextlib
import torch
import flashover

LOG = []

class Box:
    def __init__(self, t):
        self.t = t
        self.n = 0
    def step(self, t):
        self.n += 1
        return t + self.t

class Note:
    def __init__(self, out, name):
        self.out, self.name = out, name
    def __enter__(self):
        self.out.append(("enter", self.name))
        return self
    def __exit__(self, kind, *rest):
        self.out.append(("exit", self.name, kind and kind.__name__))
        return kind is KeyError

@contextlib.contextmanager
def managed(out):
    out.append("in")
    try:
        yield 0.5
    finally:
        out.append("out")
"""

BREAKS = [
    "flashover.graph_break()",
    "print('say', {n})",
    "_ = float({t}.sum())",
    "LOG.append(float({t}.mean()) > -1e9)",
    "_ = {t}.tolist()",
]
TENSOR = [
    "{a} = {a}.sin() + {b}", "{a} = {b} * 0.5 - {a}", "{a} = torch.relu({a}) + {b}.cos()", "{a} = {a} @ {b}", "{a} = {a}.t() + {b}",  # noqa: E501
    "{a} = torch.softmax({a}, 0)", "{a} = torch.where({a} > {b}, {a}, {b})", "{a} = {a}.clone(); {a}.add_(1)", "{a} = {a} - {a}.mean()",  # noqa: E501
    "{a} = torch.tanh({a})",
]  # fmt: skip


class Writer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.serial = 0
        self.functions = 0

    def pick(self, of: list[str], tensors: list[str]) -> str:
        r = self.random
        return r.choice(of).format(a=r.choice(tensors), b=r.choice(tensors), t=r.choice(tensors), n=r.randrange(100))

    def fresh(self, stem: str) -> str:
        self.serial += 1
        return f"{stem}{self.serial}"

    def add(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def block(self, depth: int, level: int, tensors: list[str], loop: bool = False) -> None:
        r = self.random
        for _ in range(r.randint(1, 3)):
            self.statement(depth, level, tensors, loop)

    def statement(self, depth: int, level: int, tensors: list[str], loop: bool) -> None:
        r = self.random
        if r.random() < 0.3:
            self.add(depth, self.pick(BREAKS, tensors))
        kinds = ["tensor"] * 5 + ["log", "box", "number", "cell"]
        if level > 0:
            kinds += [
                "branch",
                "branch",
                "for",
                "while",
                "with",
                "managed",
                "no_grad",
                "try",
                "raise",
                "call",
                "call",
                "generator",
                "comprehension",
                "zip",
            ]
        if loop:
            kinds += ["break", "continue"]
        kind = r.choice(kinds)
        a, b = r.choice(tensors), r.choice(tensors)
        if kind == "tensor":
            self.add(depth, self.pick(TENSOR, tensors))
        elif kind == "log":
            self.add(depth, f"out.append({a}.sum())")
        elif kind == "box":
            self.add(depth, f"{a} = box.step({a})")
        elif kind == "number":
            self.add(depth, f"n += {r.randint(1, 3)}")
        elif kind == "cell":
            self.add(depth, "count()")
        elif kind == "branch":
            test = r.choice(
                [
                    f"{a}.sum() > 0.125",
                    f"{a}.sum() > {b}.sum() + 0.125",
                    "n % 2 == 0",
                    f"n > 3 and {a}.mean() < -0.125",
                    f"{a} is {b}",
                    "len(out) % 2",
                ]
            )
            self.add(depth, f"if {test}:")
            self.block(depth + 1, level - 1, tensors, loop)
            if r.random() < 0.6:
                self.add(depth, "else:")
                self.block(depth + 1, level - 1, tensors, loop)
        elif kind == "for":
            i = self.fresh("i")
            over = r.choice(
                [
                    f"range({r.randint(0, 3)})",
                    f"[{a}, {b}]",
                    "(1, 2)",
                    f"enumerate([{a}, {b}])",
                    "{'p': 1, 'q': 2}.items()",
                ]
            )
            self.add(depth, f"for {i} in {over}:")
            self.block(depth + 1, level - 1, tensors, True)
            if r.random() < 0.3:
                self.add(depth, "else:")
                self.block(depth + 1, level - 1, tensors, loop)
        elif kind == "while":
            w = self.fresh("w")
            self.add(depth, f"{w} = 0")
            self.add(depth, f"while {w} < {r.randint(1, 3)}:")
            self.add(depth + 1, f"{w} += 1")
            self.block(depth + 1, level - 1, tensors, True)
        elif kind == "with":
            self.add(depth, f"with Note(out, {self.serial}):")
            self.block(depth + 1, level - 1, tensors, loop)
        elif kind == "managed":
            d = self.fresh("d")
            self.add(depth, f"with managed(out) as {d}:")
            self.add(depth + 1, f"{a} = {a} * {d}")
            self.block(depth + 1, level - 1, tensors, loop)
        elif kind == "no_grad":
            self.add(
                depth,
                f"with {r.choice(['torch.no_grad()', 'torch.enable_grad()', 'torch.autocast(chr(99) + chr(112) + chr(117), torch.bfloat16, False)'])}:",  # noqa: E501
            )
            self.block(depth + 1, level - 1, tensors, loop)
        elif kind == "try":
            self.add(depth, "try:")
            self.block(depth + 1, level - 1, tensors, loop)
            if r.random() < 0.5:
                self.add(depth + 1, f"if {r.choice(['True', f'{a}.sum() > 0.125', 'n % 2'])}:")
                self.add(depth + 2, f"raise {r.choice(['KeyError', 'ValueError', 'IndexError'])}('e{self.serial}')")
            self.add(depth, "except (ValueError, IndexError) as e:")
            self.add(depth + 1, "out.append(repr(e))")
            self.block(depth + 1, level - 1, tensors, loop)
            if r.random() < 0.5:
                self.add(depth, "finally:")
                self.add(depth + 1, "out.append('finally')")
                self.block(depth + 1, level - 1, tensors)
        elif kind == "raise":
            self.add(depth, f"with Note(out, {self.serial}):")
            self.block(depth + 1, level - 1, tensors, loop)
            self.add(depth + 1, f"if {r.choice(['True', f'{a}.sum() > 0.125'])}: raise KeyError({self.serial})")
        elif kind == "call":
            f, u, v = self.fresh("f"), self.fresh("u"), self.fresh("v")
            closure = r.random() < 0.5
            self.add(depth, f"def {f}({u}, {v}, n=1, *, out=out):")
            if closure:
                self.add(depth + 1, "nonlocal total")
            self.block(depth + 1, level - 1, [u, v])
            if closure:
                self.add(depth + 1, f"total = total + {u}.sum()")
            self.add(depth + 1, f"return {u} + {v}" if r.random() < 0.7 else f"return {u}, {v}")
            result = f"{f}({r.choice([f'{a}, {b}', f'{a}, {v}={b}, n=n', f'*[{a}, {b}]'])})"
            self.add(depth, f"{a} = {result}")
            self.add(depth, f"{a} = {a}[0] if isinstance({a}, tuple) else {a}")
        elif kind == "generator":
            g, q = self.fresh("g"), self.fresh("q")
            self.add(depth, f"def {g}({q}):")
            self.add(depth + 1, "n = 0")
            self.add(depth + 1, f"for _i in range({r.randint(1, 3)}):")
            self.add(depth + 2, self.pick(TENSOR, [q]))
            if r.random() < 0.4:
                self.add(depth + 2, self.pick(BREAKS, [q]))
            self.add(depth + 2, f"yield {q}")
            self.add(depth, f"for {q} in {g}({a}):")
            self.add(depth + 1, f"{b} = {b} + {q}")
            self.block(depth + 1, level - 1, tensors, True)
        elif kind == "comprehension":
            k = self.fresh("k")
            inner = r.choice([f"{a} * {k}", f"box.step({a})", f"({a} + {k}) if {k} % 2 else {b}"])
            self.add(depth, f"{a} = sum([{inner} for {k} in range(1, {r.randint(2, 4)})])")
        elif kind == "zip":
            s, m = self.fresh("s"), self.fresh("m")
            self.add(depth, f"for {s}, {m} in zip([{a}, {b}], map(lambda z: z * 2, [{b}, {a}])):")
            self.add(depth + 1, f"{a} = {s} + {m}.tanh()")
            self.block(depth + 1, level - 1, tensors, True)
        elif kind in ("break", "continue"):
            self.add(depth, f"if {r.choice(['n % 3 == 0', f'{a}.sum() > 1'])}: {kind}")

    def source(self) -> str:
        self.add(0, "def program(x, y):")
        self.add(1, "out, n, box, total = [], 0, Box(y), torch.zeros(())")
        self.add(1, "hits = 0")
        self.add(1, "def count():")
        self.add(2, "nonlocal hits")
        self.add(2, "hits += 1")
        for _ in range(self.random.randint(2, 4)):
            self.block(1, 2, ["x", "y"])
        self.add(1, "return x, y, out, n, box.n, hits, total")
        return HEADER + "\n".join(self.lines) + "\n"


def program_of(seed: int) -> tuple[Callable[..., Any], str, dict[str, Any]]:
    source = Writer(seed).source()
    name = f"<breaks {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {}
    exec(compile(source, name, "exec"), scope)
    return scope["program"], source, scope


def outcome(f: Callable[..., Any], scope: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    scope["LOG"].clear()
    said, x, y = io.StringIO(), x.clone(), y.clone()
    with redirect_stdout(said):
        try:
            result = ("value", f(x, y))
        except Exception as e:
            lines, tb = [], e.__traceback__
            while tb is not None:
                if tb.tb_frame.f_code.co_filename.startswith("<breaks"):
                    lines.append(tb.tb_lineno)
                tb = tb.tb_next
            result = ("raised", repr(e), lines)
    return result, said.getvalue(), list(scope["LOG"]), x, y, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")


def check(seed: int, backend: str = "eager") -> str:
    """Empty, or what is wrong."""
    program, source, scope = program_of(seed)
    flashover.reset()
    compiled = flashover.compile(program, backend=backend)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _ in range(3):
            x, y = (torch.randn(3, 3, generator=generator) for _ in range(2))
            want, got = outcome(program, scope, x, y), outcome(compiled, scope, x, y)
            if differ(got, want, rtol=1e-3, atol=1e-4, strides=False):
                try:
                    return f"seed {seed}:\n{source}\nwant {want}\n got {got}"
                except RuntimeError as e:
                    return f"seed {seed}:\n{source}\n{e}"
    return ""


def long_mode(check: Callable[[int, str], str]) -> tuple[int, int]:
    """Seeds until they or the time are over or five failed; `check(seed, backend)` says what is wrong. Programs and
    failures."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=600)
    arguments.add_argument("--start", "--seed", type=int, default=0, help="the first seed")
    arguments.add_argument("--seeds", type=int, default=10**9, help="how many, if the time is enough")
    arguments.add_argument("--backend", default="eager")
    a = arguments.parse_args()
    import warnings

    warnings.simplefilter("ignore")
    end, seed, failures = time.time() + a.seconds, a.start, 0
    while time.time() < end and failures < 5 and seed < a.start + a.seeds:
        wrong = check(seed, a.backend)
        if wrong:
            failures += 1
            print(wrong, flush=True)
        seed += 1
    return seed - a.start, failures


def main() -> None:
    programs, failures = long_mode(check)
    stats = flashover.compile_stats()
    print(f"{programs} programs, {failures} wrong, {stats['graph_breaks']} graph breaks, {stats['graphs']} graphs")
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
