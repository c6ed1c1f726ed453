"""Threads call methods of a tensor, and train with a parameter, while functions that read them are captured: their
results are those without a capture."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import flashover
from flashover import _C

CAPTURES, THREADS = 100, 3

x = torch.linspace(-1, 1, 64).view(8, 8)
p = torch.nn.Parameter(torch.linspace(-2, 2, 64).view(8, 8))
twice, total, first, bound = x + x, x.sum().item(), torch.linspace(-1, 1, 64)[:8], x.mul


@pytest.fixture(autouse=True)
def one_kernel_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def backward() -> bool:
    """Through the parameter, to a leaf of the thread's own."""
    w = torch.ones(8, 8, requires_grad=True)
    (w * p).sum().backward()
    return torch.equal(w.grad, p.detach())


def is_given_back() -> bool:
    with torch.no_grad():
        return p.add_(0) is p


METHODS: dict[str, Callable[[], Any]] = {
    "method": lambda: torch.equal(x.mul(2.0), twice),
    "operator": lambda: torch.equal(x * 2, twice),
    "function": lambda: torch.equal(torch.mul(x, 2), twice),
    "bound": lambda: torch.equal(bound(2.0), twice),
    "bound at once": lambda: torch.equal(getattr(x, "mul")(2.0), twice),  # noqa: B009
    "starred": lambda: torch.equal(x.mul(*(2.0,)), twice),
    "unbound": lambda: torch.equal(torch.Tensor.mul(x, 2.0), twice),
    "unbound and starred": lambda: torch.equal(torch.Tensor.mul(*(x, 2.0)), twice),
    "sign": lambda: torch.equal(-x, twice / -2),
    "item": lambda: x.sum().item() == total,
    "index": lambda: torch.equal(x[0], first),
    "rows": lambda: torch.equal(x.unbind()[0], first),
    "metadata": lambda: x.shape == (8, 8) and x.is_leaf and not x.requires_grad and p.requires_grad,
    "detach": lambda: torch.equal(x.detach() * 2, twice),
    "backward": backward,
    "in place": is_given_back,
}


@pytest.mark.parametrize("name", METHODS)
def test_results_of(name: str) -> None:
    count = 1 if name == "in place" else THREADS  # several keep captures waiting for too long (docs/limits.md)
    over, wrong, calls = threading.Event(), [], [0] * count

    def work(k: int) -> None:
        while not over.is_set():
            try:
                assert METHODS[name]()
                calls[k] += 1
            except BaseException as e:
                wrong.append(e)
                over.set()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    for t in threads:
        t.start()
    want = x.sin() + p
    for _ in range(CAPTURES):
        if over.is_set():
            break
        got = flashover.compile(lambda: x.sin() + p, backend="eager")()
        assert torch.equal(got, want)
    over.set()
    for t in threads:
        t.join()
    assert not wrong, wrong[0]
    assert all(calls)


def test_every_write_counts() -> None:
    """In-place methods of the real tensor: its memory and its version."""
    y, over, calls = torch.zeros(8), threading.Event(), [0]

    def work() -> None:
        while not over.is_set():
            y.add_(1)
            calls[0] += 1

    t = threading.Thread(target=work)
    version = y._version
    t.start()
    for _ in range(CAPTURES):
        flashover.compile(lambda: y.sin(), backend="eager")()
    over.set()
    t.join()
    assert calls[0] > 0 and y.tolist() == [calls[0]] * 8 and y._version == version + calls[0]


def test_gradients_of_a_shared_parameter_arrive() -> None:
    q, over, calls = torch.nn.Parameter(torch.ones(4)), threading.Event(), [0]
    wrong: list[Any] = []

    def work() -> None:
        while not over.is_set():
            (q * 3).sum().backward()
            if q.grad is None or q.grad.tolist() != [3.0] * 4:
                wrong.append(q.grad)
            q.grad = None
            calls[0] += 1

    t = threading.Thread(target=work)
    t.start()
    for _ in range(CAPTURES):
        flashover.compile(lambda: q.sin(), backend="eager")()
    over.set()
    t.join()
    assert calls[0] > 0 and not wrong, wrong[0]


def test_idle_threads_with_the_tensor_as_argument_are_not_waited_for() -> None:
    over = threading.Event()
    threads = [threading.Thread(target=lambda t: over.wait(), args=(x,)) for _ in range(4)]
    for t in threads:
        t.start()
    c = flashover.compile(lambda: x.sin(), backend="eager")
    c()
    over.set()
    for t in threads:
        t.join()
    assert len(c.entries()) == 1


def test_threads_that_wait_for_the_compiler_are_not_waited_for() -> None:
    """Each has the tensor as an operand of the call in which it waits."""
    together = threading.Barrier(4)
    entries: list[int] = []

    def work(k: int) -> None:
        for i in range(10):
            c = flashover.compile(lambda t, c=k * 10 + i: t.sin() + c, backend="eager")
            together.wait()
            c(x)
            entries.append(len(c.entries()))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert entries.count(1) >= 30  # one that another's method or kernel keeps off is compiled later


def test_a_method_that_takes_long_keeps_a_capture_off_for_one_call() -> None:
    big, inside, go_on = torch.ones(4), threading.Event(), threading.Event()

    class Waits:
        def __index__(self) -> int:
            inside.set()
            go_on.wait(60)
            return 0

    t = threading.Thread(target=lambda: big.select(0, Waits()))  # in its midst it calls Python
    t.start()
    assert inside.wait(60)
    c = flashover.compile(lambda: big.sin(), fullgraph=True, backend="eager")
    assert torch.equal(c(), big.sin())
    assert not c.entries()
    go_on.set()
    t.join()
    assert torch.equal(c(), big.sin())
    assert len(c.entries()) == 1


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from codes_of(c)


def test_depths_of_stacks() -> None:
    """Known for all code that is loaded, and within what CPython's assembler counted for it."""
    functions = 0
    for module in list(sys.modules.values()):
        for f in list(vars(module).values()):
            if not isinstance(f, types.FunctionType):
                continue
            for code in codes_of(f.__code__):
                depths = _C._frame.stack_depths(code)
                assert depths and depths[0] == 0, code
                assert max(depths) <= code.co_stacksize, code
                functions += 1
    assert functions > 1000
