"""Random programs that write objects of Python's library while ints change, compiled against eager:
`python tests/fuzz/fuzz_written_objects.py --seconds 60`.

An int that changes is a symbol from the second value on: a trace is made with one value and serves others. What such
a program writes to an old object (a list, an array, mapped memory, a counter, an iterator that advances) must be what
eager writes, at that place and with that value, once; also where the trace is given up behind the write.
"""

from __future__ import annotations

import search_path

import argparse
import array
import collections
import contextvars
import copy
import ctypes
import functools
import heapq  # noqa: F401  (programs use it)
import io
import itertools
import mmap
import random
import struct  # noqa: F401
import sys
import time
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from seed_batches import run_batch

import flashover


class Slots:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a, self.b = 1, [2, 3]


class Watched:
    """Notes what is done to it."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.value = 1

    @property
    def level(self) -> int:
        self.log.append("get")
        return self.value

    @level.setter
    def level(self, value: int) -> None:
        self.log.append(("set", value))
        self.value = value

    def __getitem__(self, key: int) -> int:
        self.log.append(("item", key))
        return self.value + key

    def __setitem__(self, key: int, value: int) -> None:
        self.log.append((key, value))

    def __iadd__(self, other: int) -> Watched:
        self.log.append(("+=", other))
        return self

    def __contains__(self, key: int) -> bool:
        self.log.append(("in", key))
        return key > 2

    def __len__(self) -> int:
        self.log.append("len")
        return 3


class Numbers(list):  # type: ignore[type-arg]
    def append(self, value: int) -> None:
        super().append(value + 100)


class Table(dict):  # type: ignore[type-arg]
    def __missing__(self, key: int) -> int:
        self[key] = key * 2
        return key * 2


class Floats(array.array):  # type: ignore[type-arg]
    pass


def mapped() -> mmap.mmap:
    memory = mmap.mmap(-1, 16)
    memory[:] = bytes(range(16))
    return memory


def generated() -> Any:
    total = 0
    while True:
        total += (yield total) or 1


def started() -> Any:
    g = generated()
    next(g)
    return g


class Shared:
    pass


VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("n", default=7)

# What is written: how it is made, and what is looked at behind each call.
OBJECTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (lambda: [1, 2, 3, 4], list),
    "numbers": (lambda: Numbers([1, 2, 3]), list),
    "dict": (lambda: {0: 1, 1: 2, "k": 3}, lambda o: list(o.items())),
    "table": (lambda: Table({0: 1}), lambda o: list(o.items())),
    "ordered": (lambda: collections.OrderedDict(a=1, b=2, c=3), lambda o: list(o.items())),
    "defaults": (lambda: collections.defaultdict(list, {1: [1]}), lambda o: [(k, list(v)) for k, v in o.items()]),
    "counter": (lambda: collections.Counter("abca"), lambda o: sorted(map(str, o.items()))),
    "deque": (lambda: collections.deque([1, 2, 3, 4], maxlen=6), list),
    "set": (lambda: {1, 2, 3}, sorted),
    "chain": (lambda: collections.ChainMap({1: 1}, {2: 2}), lambda o: [dict(m) for m in o.maps]),
    "bytearray": (lambda: bytearray(range(16)), bytes),
    "memoryview": (lambda: memoryview(bytearray(range(16))), bytes),
    "array": (lambda: array.array("q", [1, 2, 3, 4]), list),
    "floats": (lambda: Floats("d", [1, 2, 3, 4]), list),
    "numpy": (lambda: np.arange(6), lambda o: o.tolist()),
    "ctypes": (lambda: (ctypes.c_int * 5)(1, 2, 3, 4, 5), list),
    "mmap": (mapped, bytes),
    "bytesio": (lambda: io.BytesIO(bytes(range(16))), lambda o: (o.getvalue(), o.tell())),
    "stringio": (lambda: io.StringIO("abcdef"), lambda o: (o.getvalue(), o.tell())),
    "count": (lambda: itertools.count(3), repr),
    "cycle": (lambda: itertools.cycle([1, 2, 3]), lambda o: next(copy.copy(o))),
    "iterator": (lambda: iter([5, 6, 7, 8, 9, 10, 11, 12]), lambda o: list(copy.copy(o))),
    "generator": (started, lambda o: o.gi_frame.f_locals["total"]),
    "slots": (Slots, lambda o: (o.a, list(o.b))),
    "watched": (Watched, lambda o: (list(o.log), o.value)),
    "namespace": (lambda: types.SimpleNamespace(a=1, b=[1]), repr),
    "random": (lambda: random.Random(3), lambda o: hash(o.getstate())),
    "nprandom": (lambda: np.random.RandomState(3), lambda o: o.get_state()[2]),
    "variable": (lambda: VARIABLE, lambda o: o.get()),
    "weak": (weakref.WeakValueDictionary, lambda o: sorted(map(str, o.keys()))),
    "tensors": (lambda: [torch.zeros(3), torch.ones(3)], lambda o: [t.tolist() for t in o]),
    "module": (lambda: torch.nn.BatchNorm1d(4), lambda o: (o.training, o.eps, o.momentum)),
}

# Statements on `o` with the int n; `k` is 0 to 3 by n.
INDEXED = ["o[k] = n", "o[k] += 1", "v = o[k]", "o[k], o[0] = o[0], o[k]", "v = len(o) + n"]
BYTES = ["o[k] = n & 127", "o[k:k + 2] = bytes([n & 127, 1])", "v = o[k]", "struct.pack_into('b', o, k, n & 63)"]
STATEMENTS: dict[str, list[str]] = {
    "list": [*INDEXED, "o.append(n)", "o.insert(k, n)", "v = o.pop()", "o.extend(range(k))", "del o[k]", "o.reverse()",
             "o[k:k + 1] = [n, n]", "o.sort()", "heapq.heappush(o, n)", "v = o.index(o[k])", "o += [n]", "o *= 1"],
    "numbers": [*INDEXED, "o.append(n)", "o.extend([n])"],
    "dict": ["o[n] = k", "o[k] = n", "v = o.get(n, 3)", "v = o.pop(n, 4)", "o.update({n: 1})", "v = o.setdefault(n, k)",
             "o['k'] += n", "v = len(o)", "o |= {k: n}"],
    "table": ["v = o[n]", "o[n] = k", "v = o.get(n, 1)"],
    "ordered": ["o[f'{n}'] = k", "o.move_to_end('a', last=n % 2 == 0)", "o['b'] = n", "v = len(o)"],
    "defaults": ["o[n].append(k)", "v = len(o[k])", "o[1].append(n)"],
    "counter": ["o['a'] += n", "o.update({'z': n})", "v = o['q'] + o['a']", "o.subtract({'a': k})"],
    "deque": [*INDEXED, "o.append(n)", "o.appendleft(n)", "o.rotate(n)", "v = o.popleft()", "o.extend([n, k])"],
    "set": ["o.add(n)", "o.discard(k)", "v = int(n in o)", "o |= {n, k}", "o ^= {k}"],
    "chain": ["o[n] = k", "v = o.get(n, 5)", "o.maps[1][k] = n"],
    "bytearray": [*BYTES, "o.append(n & 127)", "o.extend(b'ab')", "o[k] ^= 3"],
    "memoryview": [*BYTES, "o[k] ^= 3"],
    "array": [*INDEXED, "o.append(n)", "v = o.pop()", "o.extend([n])", "o.insert(k, n)"],
    "floats": ["o[k] = n", "o[k] += n", "o.append(n)"],
    "numpy": ["o[k] = n", "o[k] += 1", "o[k:k + 2] = n", "v = int(o[k])", "o.fill(n)", "o += n",
              "np.add.at(o, [k], n)"],
    "ctypes": ["o[k] = n", "v = o[k]", "o[k] += n", "ctypes.memset(o, n & 1, 4)"],
    "mmap": [*BYTES, "o.seek(k)", "o.write_byte(n & 127)", "o.move(0, k, 2)", "v = o.find(bytes([k]))"],
    "bytesio": ["o.seek(k)", "o.write(bytes([n & 127]))", "v = len(o.read(k))", "o.truncate(8 + k)"],
    "stringio": ["o.seek(k)", "o.write(f'{n}')", "v = len(o.read(k))"],
    "count": ["v = next(o)", "v = next(o) + n"],
    "cycle": ["v = next(o)", "v = next(o) + n"],
    "iterator": ["v = next(o, n)", "v = sum(itertools.islice(o, k))"],
    "generator": ["v = next(o)", "v = o.send(n)"],
    "slots": ["o.a = n", "o.a += k", "o.b.append(n)", "o.b = [n]", "v = o.a"],
    "watched": ["o.level = n", "v = o.level + n", "v = o[n]", "o[n] = k", "o += n", "v = int(n in o)", "v = len(o)",
                "o.level += n"],
    "namespace": ["o.a = n", "o.b.append(k)", "o.c = n", "setattr(o, f'q{k}', n)", "v = o.a", "vars(o)['z'] = n"],
    "random": ["v = o.randrange(1, 50 + k)", "o.seed(n)", "v = int(o.random() * 10) + n"],
    "nprandom": ["v = int(o.randint(0, 9 + k))", "o.seed(k)"],
    "variable": ["o.set(n)", "v = o.get() + n"],
    "weak": ["o[n] = KEPT", "v = len(o)"],
    "tensors": ["o[k % 2].add_(n)", "o[k % 2] = x.flatten()[:3] + n", "o.append(torch.full((2,), float(n)))",
                "o[0][k % 3] = n", "v = len(o)"],
    "module": ["o.train(n % 2 == 0)", "o.eps = 0.1 + n", "o.momentum = n / 8", "v = int(o.training)"],
}  # fmt: skip
KEPT = Shared()
TENSORS = ["x = x + n", "x = (x * 2).relu()", "x = x + v", "x = x[:, :2 + k % 2]", "x = torch.cat([x, x[:1] * n])",
           "x = x.sum(0, keepdim=True) + v", "x = x.repeat(1 + k % 2, 1)", "x = x * torch.arange(x.shape[1])",
           "if n > 4: x = x - 1", "for i in range(k): x = x + i"]  # fmt: skip
BREAKS = ["flashover.graph_break()", "v = v + int(x.sum() > 0)"]
INTS = (3, 4, 9, 2, 5, 12, 0, 1, -1, 6)


def program(seed: int) -> tuple[str, list[str]]:
    """The source of a function f(x, n, objects), and the kinds of its objects."""
    rng = random.Random(seed)
    kinds = rng.sample(sorted(OBJECTS), rng.randint(1, 3))
    lines = ["def f(x, n, objects):", "    v, k = 1, n % 4"]
    for _ in range(rng.randint(3, 8)):
        draw = rng.random()
        if draw < 0.55:
            i = rng.randrange(len(kinds))
            lines += [f"    o = objects[{i}]", f"    {rng.choice(STATEMENTS[kinds[i]])}"]
        elif draw < 0.95:
            lines.append(f"    {rng.choice(TENSORS)}")
        else:
            lines.append(f"    {rng.choice(BREAKS)}")
    return "\n".join([*lines, "    return x, v, k"]), kinds


def made(source: str, seed: int) -> Callable[..., Any]:
    space = dict(globals())
    exec(compile(source, f"<written objects {seed}>", "exec"), space)
    return space["f"]


def called(f: Callable[..., Any], n: int, rows: int, kinds: list[str], objects: list[Any]) -> Any:
    x = torch.arange(4.0 * rows).reshape(rows, 4) * 0.1
    try:
        out, v, k = f(x, n, objects)
        result: Any = (out.shape, [round(e, 3) for e in out.flatten().tolist()], v, k)
    except Exception as error:
        result = (type(error).__name__, str(error))
    return result, [OBJECTS[kind][1](o) for kind, o in zip(kinds, objects, strict=True)]


def check(seed: int, compiled: Callable[..., Any] = flashover.compile) -> str:
    """What is wrong with the program of this seed; empty: nothing."""
    source, kinds = program(seed)
    plain, fast = made(source, seed), compiled(made(source, seed))
    rng = random.Random(seed)
    calls = [(n, rng.choice((3, 3, 5, 6))) for n in INTS[: rng.randint(4, len(INTS))]]
    outcomes = []
    for f in (plain, fast):
        VARIABLE.set(7)
        objects = [OBJECTS[kind][0]() for kind in kinds]
        outcomes.append([called(f, n, rows, kinds, objects) for n, rows in calls])
    for call, want, got in zip(calls, *outcomes, strict=True):
        if repr(want) != repr(got):
            return f"call {call} of {calls}\n{source}\n{kinds}\neager    {want}\ncompiled {got}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--start", "--seed", type=int, default=int(time.time()), help="the first seed")
    parser.add_argument("--dynamic", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    compiled = functools.partial(flashover.compile, dynamic=options.dynamic or None)
    counts: dict[str, int] = {}
    end, seed, stop = time.time() + options.seconds, options.start, options.start + options.count
    while time.time() < end and seed < stop:
        some = range(seed, min(seed + 40, stop))
        run_batch(some, lambda seed: (check(seed, compiled), ""), counts)
        seed = some.stop
    print(f"{sum(counts.values())} programs from {options.start} to {seed}: {counts}")
    return 1 if counts.get("wrong", 0) + counts.get("crashed", 0) else 0


if __name__ == "__main__":
    sys.exit(main())
