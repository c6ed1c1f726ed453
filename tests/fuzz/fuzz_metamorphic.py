"""Metamorphic programs: one random program, written in several ways that mean the same (a graph break put in, wrapped
in a closure, generator, with, try, class or comprehension, inlined or not, loops unrolled or not), must give one
result, side effects included, compiled and not: `./x fuzz-metamorphic [seconds]`, a slice in CI.
"""

from __future__ import annotations

import search_path

import linecache
import random
import re
from collections.abc import Callable
from typing import Any

import torch
from comparing import differ
from fuzz_breaks import long_mode

import flashover

HEADER = """
import collections
import contextlib
import functools
import itertools

import torch

import flashover

TABLE = {"k": 1}

class Holder:
    total = 0
    def __init__(self, t):
        self.t, self.seen = t, []
    def __iter__(self):
        return iter(self.seen)

class Slotted:
    __slots__ = ("v",)
    def __init__(self, v):
        self.v = v

class Quiet:
    def __enter__(self):
        return self
    def __exit__(self, *e):
        return False

class Stop(Exception):
    pass

@contextlib.contextmanager
def managed():
    yield 1
"""

# One line each; they read and write x, y (tensors), n (a number), out (a list), h (a Holder), d (a dict), q (a deque).
STATEMENTS = [
    "x = x.sin() + y", "y = torch.relu(y) - x", "x = x @ y * 0.5", "y = y.t() + n", "x = x.clone(); x.add_(1)",
    "x = torch.where(x > y, x, y)", "y = torch.softmax(y, 0)", "x[0] = y[1] * n", "x, y = y, x", "y = y + h.t",
    "n += 1", "n = n * 2 % 7", "n -= len(out)", "out.append(n)", "out.append(x.sum())", "out += [n, y.mean()]",
    "out.insert(0, n)", "out.reverse()", "h.total += n", "h.seen.append(x.mean())", "h.extra = n; del h.extra",
    "h.seen = [*h.seen, n]", "d['a'] = x.max()", "d.setdefault(('l', n), []).append(n)",
    "v = d.pop('z', 0); d['z'] = v + n",
    "d.update({n: x.min()})", "q.append(n)", "q.appendleft(y.sum()); q.pop()", "TABLE['k'] = n; TABLE['k'] = 1",
    "Holder.total = Holder.total + n; Holder.total = 0", "box = Slotted(x * n); x = box.v + 1",
    "out.extend(sorted({n, n + 1, 3}))", "out.append(f'{n:03d}|{len(d)}')", "out.append([k for k in d if k != n])",
    "out.append(tuple(d)[-1:])", "out.append(list(itertools.accumulate([n, 1, 2])))",
    "n = functools.reduce(lambda a, b: a * b % 11, [n, 3, 5])", "count()", "x = scale(x)",
    "out.append(max([n, 3], key=lambda v: -v))", "d = dict(reversed(list(d.items())))",
    "n = sum(i for i in range(n % 4))", "out.append(collections.Counter([n, n, 1]).most_common(1))",
]  # fmt: skip
BREAKS = ["flashover.graph_break()", "float(x.sum())", "print(end='')", "x.tolist()"]
LOCALS = ("x", "y", "n", "out", "h", "d", "q")


def by_made_names(statement: str) -> str:
    """The same, with methods looked up by strings that are made for it and gone after it."""
    return re.sub(r"\b([xyhdq]|out)\.(\w)(\w*)\(", r'getattr(\1, "".join(["\2", "\3"]))(', statement)


class Way:
    """One way to write a list of statements and loops."""

    def __init__(self, r: random.Random, breaks: bool, wraps: bool) -> None:
        self.r, self.breaks, self.wraps = r, breaks, wraps
        self.serial = 0

    def write(self, body: list[Any], depth: int, deep: int = 0) -> list[str]:
        """Lines that do what `body` says and leave the LOCALS as it does."""
        r, pad = self.r, "    " * depth
        if not body:
            return [pad + "pass"]
        if self.wraps and deep < 2 and r.random() < 0.5:
            start = r.randrange(len(body))
            end = r.randint(start + 1, len(body))
            return [
                *(self.plain(body[:start], depth, deep) if start else []),
                *self.wrapped(body[start:end], depth, deep + 1),
                *(self.write(body[end:], depth, deep + 1) if end < len(body) else []),
            ]
        return self.plain(body, depth, deep)

    def plain(self, body: list[Any], depth: int, deep: int) -> list[str]:
        r, pad, lines = self.r, "    " * depth, []
        for s in body:
            if self.breaks and r.random() < 0.15:
                lines.append(pad + r.choice(BREAKS))
            if isinstance(s, str):
                lines.append(pad + (by_made_names(s) if self.wraps and r.random() < 0.3 else s))
            elif s[0] == "loop":
                if self.wraps and r.random() < 0.5:
                    for _ in range(s[1]):
                        lines += self.write(s[2], depth, deep + 1)
                else:
                    self.serial += 1
                    name = f"i{self.serial}"
                    over = r.choice([f"range({s[1]})", f"[0] * {s[1]}", f"itertools.repeat(0, {s[1]})",
                                     f"zip('abc', range({s[1]}))", f"(0 for _ in range({s[1]}))"]) if self.wraps else f"range({s[1]})"  # fmt: skip # noqa: E501
                    lines.append(pad + f"for {name} in {over}:")
                    lines += self.write(s[2], depth + 1, deep + 1)
            else:  # ("if", test, then, else)
                lines.append(pad + f"if {s[1]}:")
                lines += self.write(s[2], depth + 1, deep + 1)
                lines.append(pad + "else:")
                lines += self.write(s[3], depth + 1, deep + 1)
        return lines or [pad + "pass"]

    def wrapped(self, body: list[Any], depth: int, deep: int) -> list[str]:
        r, pad, names = self.r, "    " * depth, ", ".join(LOCALS)
        self.serial += 1
        f = f"w{self.serial}"
        inner = lambda more=1: self.write(body, depth + more, deep)  # noqa: E731
        kind = r.choice(
            [
                "function",
                "closure",
                "generator",
                "sent",
                "with",
                "managed",
                "try",
                "raise",
                "finally",
                "class",
                "call",
                "comprehension",
                "partial",
                "map",
                "stack",
            ]
        )
        if kind == "function":
            return [pad + f"def {f}({names}):", *inner(), pad + f"    return {names}", pad + f"{names} = {f}({names})"]
        if kind == "partial":
            return [
                pad + f"def {f}(a, {names}):", *inner(), pad + f"    return {names}",
                pad + f"{names} = functools.partial({f}, 1)(*({names},))",
            ]  # fmt: skip
        if kind == "map":
            return [
                pad + f"def {f}(a):", pad + f"    {names} = a", *inner(), pad + f"    return {names}",
                pad + f"[({names})] = list(map({f}, [({names})]))",
            ]  # fmt: skip
        if kind == "closure":
            return [pad + f"def {f}():", pad + f"    nonlocal {names}", *inner(), pad + f"{f}()"]
        if kind == "generator":
            return [
                pad + f"def {f}({names}):", *inner(), pad + f"    yield {names}",
                pad + f"for {names} in {f}({names}): pass",
            ]  # fmt: skip
        if kind == "sent":
            return [
                pad + f"def {f}():", pad + f"    {names} = yield", *inner(), pad + f"    yield {names}",
                pad + f"g{f} = {f}(); next(g{f}); {names} = g{f}.send(({names}))",
            ]  # fmt: skip
        if kind == "with":
            return [pad + "with Quiet():", *inner()]
        if kind == "managed":
            return [pad + "with managed() as one:", *inner()]
        if kind == "stack":
            return [
                pad + "with contextlib.ExitStack() as stack:", pad + "    stack.enter_context(managed())", *inner(),
            ]  # fmt: skip
        if kind == "try":
            return [pad + "try:", *inner(), pad + "except Stop:", pad + "    out.append('never')"]
        if kind == "raise":  # the body runs while an exception is handled
            return [pad + "try:", pad + f"    raise Stop({self.serial})", pad + "except Stop as e:", *inner()]
        if kind == "finally":
            return [pad + "try:", pad + "    pass", pad + "finally:", *inner()]
        if kind == "class":
            return [
                pad + "class K:", pad + f"    def __call__(self, {names}):", *inner(2), pad + f"        return {names}",
                pad + f"{names} = K()({names})",
            ]  # fmt: skip
        if kind == "call":
            return [
                pad + f"def {f}({names}, *, k=1, **more):", *inner(), pad + f"    return [{names}]",
                pad + f"{names} = {f}(**dict(zip({LOCALS!r}, ({names}))), k=2)",
            ]  # fmt: skip
        return [
            pad + f"def {f}({names}):", *inner(), pad + f"    return {names}",
            pad + f"[({names})] = [{f}(*a) for a in [({names})]]",
        ]  # fmt: skip


def random_body(r: random.Random, level: int = 2) -> list[Any]:
    body: list[Any] = []
    for _ in range(r.randint(2, 5)):
        kind = r.random()
        if level and kind < 0.12:
            body.append(("loop", r.randint(1, 3), random_body(r, level - 1)))
        elif level and kind < 0.24:
            test = r.choice(["n % 2", "len(out) > 2", "x.sum() > 0.125", "'a' in d"])
            body.append(("if", test, random_body(r, level - 1), random_body(r, level - 1)))
        else:
            body.append(r.choice(STATEMENTS))
    return body


def source_of(body: list[Any], way: Way) -> str:
    return "\n".join(
        [
            HEADER,
            "def program(x, y):",
            "    n, out, h, d, q, hits = 3, [], Holder(y), {'z': 1}, collections.deque([1, 2], maxlen=4), 0",
            "    def count():",
            "        nonlocal hits",
            "        hits += 1",
            "    def scale(t, by=[1.0]):",
            "        by[0] += 0.5",
            "        try:",
            "            return t * by[0]",
            "        finally:",
            "            by[0] -= 0.5",
            *way.write(body, 1),
            "    return x, y, n, out, h.total, h.seen, d, list(q), hits",
        ]
    )


def load(source: str, name: str) -> Callable[..., Any]:
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {}
    exec(compile(source, name, "exec"), scope)
    return scope["program"]


NEAR: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4, "strides": False}


def outcome(f: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    x, y = x.clone(), y.clone()
    try:
        return f(x, y), x, y
    except RuntimeError as e:  # sizes may not fit: then nowhere
        return type(e).__name__, str(e)[:20]


def check(seed: int, ways: int = 4, backend: str = "eager") -> tuple[int, str]:
    """Pairs compared, and what is wrong (or nothing)."""
    r = random.Random(seed)
    body = random_body(r)
    plain = load(source_of(body, Way(random.Random(0), False, False)), f"<plain {seed}>")
    generator = torch.Generator().manual_seed(seed)
    inputs = [tuple(torch.randn(3, 3, generator=generator) for _ in range(2)) for _ in range(2)]
    pairs = 0
    with torch.no_grad():
        want = [outcome(plain, *i) for i in inputs]
        for k in range(ways):
            way = Way(random.Random(seed * 100 + k), breaks=k != 1, wraps=k != 0)
            source = source_of(body, way)
            written = load(source, f"<way {seed}.{k}>")
            if differ([outcome(written, *i) for i in inputs], want, **NEAR):
                return pairs, f"seed {seed}: the ways differ uncompiled, the fuzzer is wrong\n{source}"
            flashover.reset()
            compiled = flashover.compile(written, backend=backend)
            for i, w in zip([*inputs, inputs[0]], [*want, want[0]], strict=True):
                got = outcome(compiled, *i)
                pairs += 1
                if differ(got, w, **NEAR):
                    return pairs, f"seed {seed} way {k}:\n{source}\nwant {w}\n got {got}"
    return pairs, ""


def main() -> None:
    pairs = 0

    def one(seed: int, backend: str) -> str:
        nonlocal pairs
        n, wrong = check(seed, backend=backend)
        pairs += n
        return wrong

    programs, failures = long_mode(one)
    print(f"{programs} programs, {pairs} pairs, {failures} wrong, {flashover.compile_stats()}")
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
