"""Several threads run compiled code, captures included, over one set of Python objects without locks: what each of them
adds to a list or puts into a dict is there in the end, as in eager, where these are atomic."""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from threads import together

import flashover

THREADS, CALLS = 4, 6


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    faulthandler.dump_traceback_later(120, exit=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("compiled", ["all", "half"])
def test_items_added_to_a_list_stay(compiled: str) -> None:
    rows: list[Any] = []

    def make() -> Callable[..., Any]:
        def f(x: torch.Tensor, i: int) -> torch.Tensor:
            y = x.sin() + 1
            rows.append(("a", i))
            y = y.cos() * 2
            rows.append(("b", i))
            return y.tanh()

        return f

    def run(k: int) -> None:
        f = make()
        for i in range(CALLS):
            flashover.reset() if k == 0 and i == 3 else None
            c = f if compiled == "half" and k % 2 else flashover.compile(f, backend="eager")
            c(torch.ones(4), k * CALLS + i)

    together(run, THREADS)
    numbers = range(THREADS * CALLS)
    assert sorted(rows) == sorted([("a", i) for i in numbers] + [("b", i) for i in numbers])


def test_items_put_into_a_dict_stay() -> None:
    table: dict[str, Any] = {"first": 0}

    def run(k: int) -> None:
        def f(x: torch.Tensor, name: str) -> torch.Tensor:
            y = x.sin() + 1
            table[name] = 1
            y = y.cos() * 2
            table[name + "!"] = 2
            return y.tanh()

        for i in range(CALLS):
            flashover.compile(f, backend="eager")(torch.ones(4), f"{k}.{i}")

    together(run, THREADS)
    names = [f"{k}.{i}" for k in range(THREADS) for i in range(CALLS)]
    assert table == {"first": 0} | dict.fromkeys(names, 1) | {n + "!": 2 for n in names}


def test_a_lock_is_exclusive_while_graphs_run() -> None:
    lock = threading.Lock()
    inside: list[int] = []
    most = [0]

    def f(x: torch.Tensor) -> torch.Tensor:
        with lock:
            inside.append(1)
            most[0] = max(most[0], len(inside))
            x = (x @ x).sin()
            inside.pop()
        return x * 2

    c = flashover.compile(f)
    together(lambda k: [c(torch.eye(64)) for _ in range(CALLS)] and None, THREADS)
    assert most == [1] and inside == [] and not lock.locked()


def test_one_compiled_function_in_many_threads() -> None:
    lock = threading.RLock()
    total = [0]

    def f(x: torch.Tensor, i: int) -> torch.Tensor:
        y = x * 2
        with lock, lock:
            total[0] += i
            y = y + i
        return y.relu()

    c = flashover.compile(f)
    wrong: list[int] = []

    def run(k: int) -> None:
        for i in range(CALLS):
            if not torch.equal(c(torch.ones(3), i), f(torch.ones(3), i)):
                wrong.append(i)

    together(run, THREADS)
    assert not wrong and total == [2 * THREADS * sum(range(CALLS))]
