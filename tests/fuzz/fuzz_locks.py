"""Random programs that take and release locks: what is compiled leaves them as eager does, after each call.

Locks of threading and multiprocessing, semaphores, conditions, events and queues are taken by `with`, by acquire() and
release(), in helpers, generators and context managers; they are held across graph breaks and exceptions, and from one
call to the next. Each program runs by itself (results, exceptions, its log and the state of every lock must be eager's
after each call) and in several threads that contend for one set of locks (each stretch that a lock guards checks that
nobody else is inside; sums of what it counts must be exact). A deadlock ends the process with
the stacks of all threads.

    python tests/fuzz/fuzz_locks.py --seconds 60 --start 0
"""

from __future__ import annotations

import search_path

import argparse
import faulthandler
import linecache
import multiprocessing
import queue
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

import flashover

LIMIT = 60  # seconds that one program may take
THREADS = 3
CALLS = 4

HEADER = """
import contextlib
import torch
import flashover

def take(lock):
    lock.acquire()

def give(lock):
    lock.release()

@contextlib.contextmanager
def holding(lock):
    lock.acquire()
    try:
        yield lock
    finally:
        lock.release()

def steps(lock, x):
    with lock:
        yield x + 1
        yield x.sin() * 2

class Both:
    def __init__(self, *locks):
        self.locks = locks
    def __enter__(self):
        for l in self.locks:
            l.acquire()
        return self
    def __exit__(self, *e):
        for l in reversed(self.locks):
            l.release()
"""
# In the order in which a program may take them; how many may be inside.
LOCKS = {"lock": 1, "rlock": 1, "sem": 2, "one": 1, "cond": 1, "mlock": 1, "mrlock": 1, "wait": 1}
AGAIN = {"rlock", "cond", "mrlock"}  # may be taken again by who has them
NAMES = list(LOCKS)


class World:
    """The locks of one run, and what they guard."""

    def __init__(self) -> None:
        self.lock, self.rlock, self.sem = threading.Lock(), threading.RLock(), threading.Semaphore(2)
        self.one, self.cond, self.wait = (
            threading.BoundedSemaphore(1),
            threading.Condition(),
            threading.Condition(threading.Lock()),
        )
        self.mlock, self.mrlock = multiprocessing.Lock(), multiprocessing.RLock()
        self.event, self.queue, self.deep = threading.Event(), queue.SimpleQueue(), queue.Queue()
        self.inside = dict.fromkeys(LOCKS, 0)
        self.sums = dict.fromkeys(LOCKS, 0)
        self.wrong: list[str] = []
        self.log: list[Any] = []
        self.kept = False
        self.local = threading.local()

    def state(self) -> list[Any]:
        """Of every lock: whether it is taken, by whom, how often."""
        held = [self.lock.locked(), self.rlock._is_owned(), repr(self.rlock).split(" at ")[0].split("count=")[-1]]
        held += [self.sem._value, self.one._value, self.cond._is_owned(), self.wait._lock.locked()]
        for m in (self.mlock, self.mrlock):
            held += [m._semlock._count(), m._semlock._is_mine(), m._semlock._is_zero()]
        return [*held, self.event.is_set(), self.queue.qsize(), self.deep.qsize(), self.kept]


class Writer:
    """Writes the body of one program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.serial = 0
        self.alone = self.random.random() < 0.5  # not fit for threads: its log depends on who comes first

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def pick_lock(self, held: tuple[str, ...]) -> str | None:
        last = max((NAMES.index(h) for h in held), default=-1)
        may = NAMES[last + 1 :] + [h for h in held if h in AGAIN]
        return self.random.choice(may) if may else None

    def program(self) -> str:
        kept = self.random.choice([None, None, *NAMES[:4], "mlock"]) if self.alone else None
        self.put(0, "def f(w, x, i):")
        self.put(1, "y = x * 0.5")
        if kept:
            self.put(1, "if w.kept:")
            self.put(2, "w.kept = False")
            self.put(2, f"w.{kept}.release()")
        self.block(1, (), 0, self.random.randrange(2, 5))
        if kept:
            self.put(1, f"w.{kept}.acquire()")
            self.put(1, "w.kept = True")
        self.put(1, "return x, y")
        return HEADER + "\n".join(self.lines) + "\n"

    def block(self, depth: int, held: tuple[str, ...], nested: int, count: int) -> None:
        for _ in range(count):
            kinds: list[Callable[..., None]] = [self.tensors, self.tensors, self.breaks]
            if nested < 4:
                kinds += [self.guarded, self.guarded, self.guarded, self.handled, self.looped]
            if self.alone:
                kinds += [self.looked_at, self.told, self.made]
            self.random.choice(kinds)(depth, held, nested)

    def inner(self, depth: int, held: tuple[str, ...], nested: int) -> None:
        self.put(depth, self.random.choice(["y = y.cos() - 1", "x = x.sin() * 2"]))
        self.block(depth, held, nested + 1, self.random.randrange(1, 4))

    def tensors(self, depth: int, held: tuple[str, ...], nested: int) -> None:
        self.put(
            depth,
            self.random.choice(
                [
                    "x = x.sin() + y.cos()",
                    "y = y.tanh() * 0.5 - x.sin()",
                    "x = torch.relu(x.cos()) + y.sin()",
                    "y = y.sin() + i",
                    "x = x.tanh(); x.add_(1)",
                ]
            ),
        )

    def breaks(self, depth: int, held: tuple[str, ...], nested: int) -> None:
        say = ["flashover.graph_break()", "print(end='')", "_ = float(x.sum())", "_ = y.tolist()"]
        if self.alone:
            say.append("w.log.append(float(x.mean()) > 0)")
        self.put(depth, self.random.choice(say))

    def critical(self, depth: int, lock: str, held: tuple[str, ...], nested: int) -> None:
        """What the lock guards."""
        again = lock in held
        self.serial += 1
        n = f"n{self.serial}"
        if again or lock == "sem":
            self.inner(depth, (*held, lock), nested)
            return
        self.put(depth, f"{n} = w.inside[{lock!r}]")
        self.put(depth, f"if {n} >= {LOCKS[lock]}:")
        self.put(depth + 1, f"w.wrong.append(({lock!r}, {n}))")
        self.put(depth, f"w.inside[{lock!r}] = {n} + 1")
        self.put(depth, "try:")
        self.inner(depth + 1, (*held, lock), nested)
        self.put(depth, "finally:")
        self.put(depth + 1, f"if w.inside[{lock!r}] != {n} + 1:")
        self.put(depth + 2, f"w.wrong.append(({lock!r}, 'left', w.inside[{lock!r}]))")
        self.put(depth + 1, f"w.inside[{lock!r}] = {n}")
        self.put(depth + 1, f"w.sums[{lock!r}] += 1")

    def guarded(self, depth: int, held: tuple[str, ...], nested: int) -> None:
        lock = self.pick_lock(held)
        if lock is None:
            return
        name, r = f"w.{lock}", self.random
        form = r.choice(["with", "with", "try", "helper", "manager", "generator", "tried", "both"])
        self.serial += 1
        k = self.serial
        if form == "with":
            self.put(depth, f"with {name}:")
            self.critical(depth + 1, lock, held, nested)
        elif form in ("try", "helper"):
            self.put(depth, f"{name}.acquire()" if form == "try" else f"take({name})")
            self.put(depth, "try:")
            self.critical(depth + 1, lock, held, nested)
            self.put(depth, "finally:")
            self.put(depth + 1, f"{name}.release()" if form == "try" else f"give({name})")
        elif form == "manager":
            self.put(depth, f"with holding({name}):")
            self.critical(depth + 1, lock, held, nested)
        elif form == "generator":
            self.put(depth, f"for g{k} in steps({name}, x):")
            self.put(depth + 1, f"y = y.sin() + g{k}.cos()")
            self.critical(depth + 1, lock, held, nested)
        elif form == "tried":
            self.put(
                depth,
                f"t{k} = {name}.acquire({r.choice(['False', 'True', 'timeout=20'] if self.alone else ['timeout=20'])})",
            )
            self.put(depth, f"if t{k}:")
            self.put(depth + 1, "try:")
            self.critical(depth + 2, lock, held, nested)
            self.put(depth + 1, "finally:")
            self.put(depth + 2, f"{name}.release()")
        else:
            second = self.pick_lock((*held, lock))
            if second is None:
                return
            self.put(depth, f"with Both({name}, w.{second}):")
            self.critical(depth + 1, second, (*held, lock), nested)

    def handled(self, depth: int, held: tuple[str, ...], nested: int) -> None:
        self.put(depth, "try:")
        self.inner(depth + 1, held, nested)
        self.put(depth + 1, f"if i % 3 == {self.random.randrange(3)}:")
        self.put(depth + 2, "raise KeyError('k')")
        self.inner(depth + 1, held, nested)
        self.put(depth, f"except {self.random.choice(['KeyError', 'Exception', '(ValueError, KeyError)'])}:")
        self.inner(depth + 1, held, nested)

    def looped(self, depth: int, held: tuple[str, ...], nested: int) -> None:
        self.serial += 1
        self.put(depth, f"for j{self.serial} in range({self.random.randrange(1, 4)}):")
        self.inner(depth + 1, held, nested)
        if self.random.random() < 0.3:
            self.put(depth + 1, f"if j{self.serial} == i:")
            self.put(depth + 2, self.random.choice(["break", "continue"]))

    def looked_at(self, depth: int, held: tuple[str, ...], nested: int) -> None:
        self.put(depth, "w.log.append(w.state())")

    def told(self, depth: int, held: tuple[str, ...], nested: int) -> None:
        what = ["w.event.set()", "w.event.clear()", "w.log.append(w.event.is_set())", "w.queue.put(i)", "w.deep.put(i)"]
        what += ["w.log.append(w.queue.get() if w.queue.qsize() else None)", "w.local.v = getattr(w.local, 'v', 0) + 1"]
        what += ["w.log.append(w.deep.get() if w.deep.qsize() else None)", "w.log.append(w.event.wait(0))"]
        if "cond" in held:
            what += ["w.cond.notify_all()", "w.log.append(w.cond.wait(0))"] * 2
        self.put(depth, self.random.choice(what))

    def made(self, depth: int, held: tuple[str, ...], nested: int) -> None:
        """A lock that the program makes itself."""
        self.serial += 1
        k = self.serial
        self.put(depth, "import threading")
        self.put(depth, f"own{k} = threading.{self.random.choice(['Lock', 'RLock', 'Semaphore', 'Condition'])}()")
        self.put(depth, f"with own{k}:")
        self.inner(depth + 1, held, nested)
        if self.random.random() < 0.5:
            self.put(depth, f"w.made = own{k}")


def compiled(text: str, seed: int) -> Callable[..., Any]:
    """The function that a program defines; its lines are there for tracebacks."""
    name = f"<locks {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "fuzz_locks_program"}
    exec(compile(text, name, "exec"), names)  # our own text
    return names["f"]


def call(f: Callable[..., Any], w: World, i: int) -> Any:
    try:
        return [t.tolist() for t in f(w, torch.linspace(-1, 1, 6), i)]
    except Exception as e:
        return type(e).__name__, str(e)


def close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-4 * (1 + abs(a)) or (a != a and b != b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(p, q) for p, q in zip(a, b, strict=True))
    return a == b


def by_itself(f: Callable[..., Any], c: Callable[..., Any]) -> str | None:
    plain, ours = World(), World()
    for i in range(CALLS):
        want, got = call(f, plain, i), call(c, ours, i)
        if not close(want, got):
            return f"call {i}: eager {want}, compiled {got}"
        for what in ("log", "wrong", "inside", "sums"):
            if getattr(plain, what) != getattr(ours, what):
                return f"call {i}: {what}: eager {getattr(plain, what)}, compiled {getattr(ours, what)}"
        if plain.state() != ours.state():
            return f"call {i}: locks: eager {plain.state()}, compiled {ours.state()}"
    return None


def in_threads(f: Callable[..., Any], c: Callable[..., Any]) -> str | None:
    plain, ours = World(), World()
    wants = [[call(f, plain, i) for i in range(CALLS)] for _ in range(THREADS)]
    gots: list[list[Any]] = [[] for _ in range(THREADS)]
    start = threading.Barrier(THREADS)

    def run(k: int) -> None:
        start.wait()
        gots[k] += [call(c, ours, i) for i in range(CALLS)]

    threads = [threading.Thread(target=run, args=(k,)) for k in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if ours.wrong:
        return f"threads: {ours.wrong}"
    if not close(wants, gots):
        return f"threads: eager {wants}, compiled {gots}"
    for what in ("inside", "sums"):
        if getattr(plain, what) != getattr(ours, what):
            return f"threads: {what}: eager {getattr(plain, what)}, compiled {getattr(ours, what)}"
    return None if plain.state() == ours.state() else f"threads: locks: {plain.state()}, compiled {ours.state()}"


def run(seed: int) -> str | None:
    """What is wrong with one program, or None."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    writer = Writer(seed)
    text = writer.program()
    f = compiled(text, seed)
    backend = "flashover" if seed % 8 == 0 else "eager"
    try:
        wrong = by_itself(f, flashover.compile(f, backend=backend))
        if wrong is None and not writer.alone:
            wrong = in_threads(f, flashover.compile(f, backend=backend))
    finally:
        faulthandler.cancel_dump_traceback_later()
        flashover.reset()
    return None if wrong is None else f"seed {seed}: {wrong}\n{text.removeprefix(HEADER)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    args = parser.parse_args()
    end = time.monotonic() + (args.seconds or (0 if args.count else 20))
    programs = found = 0
    seed = args.start
    while programs < args.count or time.monotonic() < end:
        print(f"seed {seed}", file=sys.stderr, end="\r", flush=True)  # of a deadlock
        if wrong := run(seed):
            found += 1
            print(wrong, flush=True)
        programs, seed = programs + 1, seed + 1
    print(f"{programs} programs, {found} wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
