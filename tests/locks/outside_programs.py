"""Programs that use objects whose state is not Python's: files, sockets, databases, clocks, random numbers, context
variables, threads' own data, the interpreter's switches. Each takes a fresh world, a tensor and the number of the call,
and returns what it saw of that state; eager and compiled runs must see the same, call after call."""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import ctypes
import gc
import io
import itertools
import logging
import mmap
import operator
import os
import queue
import random
import signal
import socket
import sqlite3
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[Any, torch.Tensor, int], Any]]] = {}


def program(make: Callable[[], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a program under its name; `make` makes what it works on."""

    def enter(f: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[f.__name__] = (make, f)
        return f

    return enter


@program(lambda: tempfile.TemporaryFile("w+"))  # noqa: SIM115
def file_written(w: Any, x: torch.Tensor, i: int) -> Any:
    y = x * 2
    w.write(f"{i};")
    y = y + 1
    w.seek(0)
    return y, w.read()


@program(lambda: io.StringIO("a\nb\nc\nd\ne\nf\ng\n"))
def lines_of_a_stream(w: Any, x: torch.Tensor, i: int) -> Any:
    for line in w:
        x = x + len(line)
        if line == "c\n":
            break
    return x, w.readline()


@program(lambda: io.BytesIO())
def buffer_in_memory(w: Any, x: torch.Tensor, i: int) -> Any:
    w.write(b"ab")
    x = x.sin()
    w.write(bytes([i]))
    return x, w.getvalue(), w.tell()


@program(lambda: socket.socketpair())
def socket_pair(w: Any, x: torch.Tensor, i: int) -> Any:
    w[0].send(b"x" * (i + 1))
    x = x + 1
    return x, w[1].recv(16)


@program(lambda: mmap.mmap(-1, 16))
def mapped_memory(w: Any, x: torch.Tensor, i: int) -> Any:
    w[i] = 65 + i
    x = x * 2
    w.write(b"z")
    return x, w[:], w.tell()


@program(lambda: mmap.mmap(-1, 16))
def part_of_mapped_memory(w: Any, x: torch.Tensor, i: int) -> Any:
    w[i : i + 2] = b"ab"
    x = x * 2
    w[0] += 1
    return x, w[:]


@program(lambda: (ctypes.c_int * 6)())
def array_of_c(w: Any, x: torch.Tensor, i: int) -> Any:
    w[i] = 65 + i
    x = x * 2
    w[5] += i
    return x, list(w)


class Fields(ctypes.Structure):
    """Two fields; each is written by a descriptor in C."""

    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_int * 4))


@program(Fields)
def structure_of_c(w: Any, x: torch.Tensor, i: int) -> Any:
    w.a = i + 3
    x = x * 2
    w.b[i] = w.a + i
    return x, w.a, list(w.b)


class Tail(collections.deque):  # type: ignore[type-arg]
    """A property whose setter is code in C."""

    last = property(operator.itemgetter(-1), collections.deque.append)


@program(lambda: Tail(maxlen=8))
def property_set_by_c(w: Any, x: torch.Tensor, i: int) -> Any:
    w.last = i + 3
    x = x * 2
    w.last = x.shape[0] + i
    return x, w.last, list(w)


class Row(array.array):  # type: ignore[type-arg]
    """A class of the program's own whose items C writes."""


@program(lambda: Row("i", [0] * 8))
def class_over_an_array(w: Any, x: torch.Tensor, i: int) -> Any:
    w[i] = 65 + i
    x = x * 2
    w[7] += i
    return x, list(w)


def _database() -> Any:
    made = sqlite3.connect(":memory:")
    made.execute("create table t (n integer)")
    return made


@program(_database)
def database(w: Any, x: torch.Tensor, i: int) -> Any:
    with w:
        w.execute("insert into t values (?)", (i,))
        x = x + 1
    return x, w.execute("select n from t").fetchall(), w.in_transaction


@program(_database)
def database_rolled_back(w: Any, x: torch.Tensor, i: int) -> Any:
    try:
        with w:
            w.execute("insert into t values (?)", (i,))
            x = x + 1
            if i % 2:
                raise KeyError(i)
    except KeyError:
        x = x * 2
    return x, w.execute("select n from t").fetchall()


@program(lambda: random.Random(3))
def random_numbers(w: Any, x: torch.Tensor, i: int) -> Any:
    a = w.random()
    x = x + 1
    return x, a, w.randint(0, 100), w.choice([1, 2, 3]), w.gauss(0, 1)


@program(lambda: random.seed(5))
def module_random(w: Any, x: torch.Tensor, i: int) -> Any:
    random.seed(i)
    a = random.random()
    x = x * 2
    return x, a, random.sample(range(10), 3)


@program(lambda: None)
def entropy_differs(w: Any, x: torch.Tensor, i: int) -> Any:
    return x + 1, os.urandom(8) != os.urandom(8), len({random.SystemRandom().random() for _ in range(3)})


@program(lambda: SimpleNamespace(last=0.0))
def clocks_go_on(w: Any, x: torch.Tensor, i: int) -> Any:
    now = time.perf_counter()
    forward = now > w.last
    w.last = now
    return x + 1, forward, time.time() > 1e9, time.monotonic() > 0


@program(lambda: itertools.count(7))
def counter_of_before(w: Any, x: torch.Tensor, i: int) -> Any:
    a = next(w)
    x = x + a
    return x, a, next(w)


@program(lambda: iter(enumerate(zip("abcdefgh", range(8), strict=True))))
def iterators_in_iterators(w: Any, x: torch.Tensor, i: int) -> Any:
    x = x.cos()
    return x, next(w), next(w)


@program(lambda: (n * n for n in range(50)))
def generator_of_before(w: Any, x: torch.Tensor, i: int) -> Any:
    a = next(w)
    return x + a, next(w)


@program(lambda: contextvars.ContextVar("flashover_test", default=0))
def context_variable_kept(w: Any, x: torch.Tensor, i: int) -> Any:
    before = w.get()
    w.set(before + i + 1)
    x = x + 1
    return x, before, w.get()


@program(lambda: contextvars.ContextVar("flashover_test", default=0))
def context_variable_reset(w: Any, x: torch.Tensor, i: int) -> Any:
    token = w.set(i + 10)
    x = x + w.get()
    print(end="")
    x = x * 2
    inside = w.get()
    w.reset(token)
    return x, inside, w.get(), token.old_value is contextvars.Token.MISSING


@program(lambda: contextvars.ContextVar("flashover_test"))
def context_variable_in_a_copy(w: Any, x: torch.Tensor, i: int) -> Any:
    context = contextvars.copy_context()
    context.run(w.set, i)
    return x + 1, context.get(w), w.get(None)


@program(lambda: SimpleNamespace(local=threading.local()))
def data_of_a_thread(w: Any, x: torch.Tensor, i: int) -> Any:
    before = getattr(w.local, "n", -1)
    w.local.n = before + 1
    x = x + 1
    seen: list[Any] = []
    t = threading.Thread(target=lambda: seen.append(getattr(w.local, "n", "none")))
    t.start()
    t.join()
    return x, before, w.local.n, seen


@program(lambda: SimpleNamespace(hits=[]))
def signal_handlers(w: Any, x: torch.Tensor, i: int) -> Any:
    old = signal.signal(signal.SIGUSR1, lambda *a: w.hits.append(i))
    try:
        x = x + 1
        os.kill(os.getpid(), signal.SIGUSR1)
        x = x * 2
    finally:
        signal.signal(signal.SIGUSR1, old)
    return x, list(w.hits), signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


@program(lambda: None)
def collector_switched(w: Any, x: torch.Tensor, i: int) -> Any:
    gc.disable()
    off = gc.isenabled()
    x = x + 1
    gc.enable()
    return x, off, gc.isenabled()


@program(lambda: None)
def recursion_limit(w: Any, x: torch.Tensor, i: int) -> Any:
    old = sys.getrecursionlimit()
    sys.setrecursionlimit(old + 10)
    x = x + 1
    new = sys.getrecursionlimit() - old
    sys.setrecursionlimit(old)
    return x, new, sys.getrecursionlimit() - old


@program(lambda: None)
def switch_interval(w: Any, x: torch.Tensor, i: int) -> Any:
    old = sys.getswitchinterval()
    sys.setswitchinterval(0.25)
    x = x + 1
    new = sys.getswitchinterval()
    sys.setswitchinterval(old)
    return x, new, sys.getswitchinterval() == old


def _logger() -> Any:
    logger = logging.Logger("flashover-test", logging.DEBUG)
    stream = io.StringIO()
    logger.addHandler(logging.StreamHandler(stream))
    return SimpleNamespace(logger=logger, stream=stream)


@program(_logger)
def logging_handlers(w: Any, x: torch.Tensor, i: int) -> Any:
    w.logger.info("call %d", i)
    x = x + 1
    w.logger.debug("shape %s", tuple(x.shape))
    w.logger.setLevel(logging.WARNING if i else logging.DEBUG)
    w.logger.debug("again")
    return x, w.stream.getvalue()


@program(lambda: None)
def warnings_caught(w: Any, x: torch.Tensor, i: int) -> Any:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn(f"call {i}", stacklevel=1)
        x = x + 1
        print(end="")
        warnings.warn("again", stacklevel=1)
    return x, [str(s.message) for s in seen]


@program(lambda: SimpleNamespace(s=queue.SimpleQueue(), q=queue.Queue(), d=queue.PriorityQueue()))
def queues(w: Any, x: torch.Tensor, i: int) -> Any:
    w.s.put(i)
    w.q.put(i * 2)
    w.d.put(-i)
    x = x + 1
    return x, w.s.get(), w.q.get(), w.d.get_nowait(), w.q.unfinished_tasks, w.s.empty()


@program(lambda: SimpleNamespace(q=queue.Queue(), r=queue.Queue()))
def work_of_another_thread(w: Any, x: torch.Tensor, i: int) -> Any:
    t = threading.Thread(target=lambda: w.r.put(w.q.get(timeout=20) + 1))
    t.start()
    x = x + 1
    w.q.put(i)
    x = x * 2
    got = w.r.get(timeout=20)
    t.join()
    return x, got, w.q.qsize(), w.r.qsize()


@program(lambda: SimpleNamespace(cond=threading.Condition(), items=[]))
def condition_between_threads(w: Any, x: torch.Tensor, i: int) -> Any:
    def make() -> None:
        with w.cond:
            w.items.append(i)
            w.cond.notify()

    t = threading.Thread(target=make)
    with w.cond:
        t.start()
        x = x + 1
        while not w.items:
            w.cond.wait(20)
        got = w.items.pop()
        x = x * 2
    t.join()
    return x, got, w.cond._is_owned()


@program(lambda: SimpleNamespace(event=threading.Event(), barrier=threading.Barrier(2)))
def events_and_barriers(w: Any, x: torch.Tensor, i: int) -> Any:
    w.event.clear()
    t = threading.Thread(target=lambda: (w.event.wait(20), w.barrier.wait(20)))
    t.start()
    x = x + 1
    w.event.set()
    x = x * 2
    w.barrier.wait(20)
    t.join()
    return x, w.event.is_set(), w.barrier.n_waiting


@program(lambda: SimpleNamespace(stack=contextlib.ExitStack(), lock=threading.Lock()))
def lock_in_an_exit_stack(w: Any, x: torch.Tensor, i: int) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(w.lock)
        x = x + 1
        held = w.lock.locked()
        stack.callback(lambda: None)
    return x, held, w.lock.locked()


@program(lambda: threading.Lock())
def lock_handed_out(w: Any, x: torch.Tensor, i: int) -> Any:
    w.acquire()
    x = x + 1
    threading.Thread(target=w.release).start()
    got = w.acquire(timeout=20)
    w.release()
    return x * 2, got, w.locked()


@program(lambda: SimpleNamespace())
def locks_made_inside(w: Any, x: torch.Tensor, i: int) -> Any:
    lock = threading.Lock()
    with lock:
        x = x + 1
    again = threading.RLock()
    again.acquire()
    again.acquire()
    x = x * 2
    w.kept, w.held = lock, again
    again.release()
    return x, lock.locked(), again._is_owned(), w.kept is lock


@program(lambda: None)
def lock_made_inside_is_returned_held(w: Any, x: torch.Tensor, i: int) -> Any:
    lock = threading.Lock()
    lock.acquire()
    x = x + 1
    event = threading.Event()
    event.set()
    return x, SimpleNamespace(lock=lock, event=event)


def _cached() -> Any:
    import functools

    class Holder:
        made = 0

        @functools.cached_property
        def value(self) -> int:
            self.made += 1
            return self.made * 10

    return Holder()


@program(_cached)
def cached_property_once(w: Any, x: torch.Tensor, i: int) -> Any:
    return x + w.value, w.value, w.made


@program(lambda: SimpleNamespace(before=os.environ.get("FLASHOVER_TEST_VARIABLE")))
def environment(w: Any, x: torch.Tensor, i: int) -> Any:
    os.environ["FLASHOVER_TEST_VARIABLE"] = str(i)
    x = x + 1
    got = os.environ["FLASHOVER_TEST_VARIABLE"], os.getenv("FLASHOVER_TEST_VARIABLE")
    del os.environ["FLASHOVER_TEST_VARIABLE"]
    return x, got, "FLASHOVER_TEST_VARIABLE" in os.environ


@program(lambda: bytearray(b"abcdefgh"))
def bytes_that_change(w: Any, x: torch.Tensor, i: int) -> Any:
    w[i] = 90
    x = x + w[0]
    view = memoryview(w)
    view[7 - i] = 65 + i
    return x, bytes(w), view[i]
