"""Signals that come while a call is compiled: some cases of tests/fuzz/fuzz_interrupts.py, and what it cannot ask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from interpreters import python

ROOT = Path(__file__).resolve().parent.parent.parent
FUZZER = str(ROOT / "tests" / "fuzz" / "fuzz_interrupts.py")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("arguments", [["--count", "20"], ["--count", "2", "--triton"]], ids=["kernels", "triton"])
def test_signals_at_random_points(arguments: list[str]) -> None:
    if "--triton" in arguments:
        pytest.importorskip("triton")
    done = subprocess.run([sys.executable, FUZZER, *arguments], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


RAISING_HANDLER = """
import signal
import torch, flashover
class Raised(BaseException):
    pass
def handler(*_):
    raise Raised
signal.signal(signal.SIGALRM, handler)
"""


def run(code: str, **env: str) -> str:
    done = python("-c", code, env={**os.environ, "FLASHOVER_CACHE_DIR": "", **env})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_interrupt_in_the_middle_of_a_trace_is_not_the_programs_own() -> None:
    """The captured code catches everything and writes as it goes: what it did is taken back, the interrupt leaves the
    call, and the next call does it once."""
    code = """
import signal
import torch, flashover
seen, armed = [], [True]
def f(x):
    seen.append(1)
    try:
        x = x * 8
        if armed:
            for i in range(400000):
                pass
        x = x + 1
    except BaseException:
        x = x - 100
    return x
def handler(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, handler)
c = flashover.compile(f)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    c(torch.ones(3))
    print("returned")
except KeyboardInterrupt:
    print("interrupted", len(seen))
armed.clear()
print(c(torch.ones(3)).tolist(), len(seen))
"""
    assert run(code).split("\n")[:2] == ["interrupted 0", "[9.0, 9.0, 9.0] 1"]


@pytest.mark.parametrize(
    "option", ["recompile_limit", "disable", "accumulated_recompile_limit", "assume_static_by_default"]
)
def test_an_interrupt_while_an_option_of_torch_is_read_is_not_lost(option: str) -> None:
    """Reading one runs Python code, whose errors mean that there is no such option; the next one is read behind it."""
    code = f"""
import os, signal, sys, types
import torch, flashover
asked = []
class Config(types.ModuleType):
    def __getattr__(self, name):
        if name == {option!r} and name not in asked:
            os.kill(os.getpid(), signal.SIGINT)
        asked.append(name)
        for i in range(100):
            pass
        raise AttributeError(name)
sys.modules["torch._dynamo.config"] = Config("config")
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    flashover.compile(lambda x: x + 1)(torch.ones(3))
    print("returned")
except KeyboardInterrupt:
    print("interrupted")
assert {option!r} in asked, asked
"""
    assert run(code).strip() == "interrupted"


def test_a_handler_runs_as_in_eager_code() -> None:
    """It notes what it likes, once, and the note stays: it is no part of the trace."""
    code = """
import signal
import torch, flashover
notes, counts = [], {"alarm": 0}
def handler(*_):
    notes.append(torch.ones(2).sum().item())
    counts["alarm"] += 1
signal.signal(signal.SIGALRM, handler)
def f(x):
    for i in range(300000):
        if i == 299999:
            x = x * 2 + counts["alarm"] * 0
    return x
signal.setitimer(signal.ITIMER_REAL, 0.05)
y = flashover.compile(f)(torch.ones(3))
print(y.tolist(), notes, counts)
"""
    assert run(code).strip() == "[2.0, 2.0, 2.0] [2.0] {'alarm': 1}"


def test_a_program_that_is_signalled_all_the_time_is_compiled() -> None:
    code = """
import signal
import torch, flashover
ticks = [0]
def handler(*_):
    ticks[0] += 1
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
def f(x):
    for i in range(20):
        x = (x * 1.01).tanh() + i
    return x
c = flashover.compile(f)
x = torch.randn(8)
torch.testing.assert_close(c(x), f(x))
signal.setitimer(signal.ITIMER_REAL, 0)
print(flashover.compile_stats()["kernels"] > 0, ticks[0] > 0)
"""
    assert run(code).strip() == "True True"


def test_who_waits_for_another_threads_build_is_interrupted(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nsleep 8\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    code = """
import os, signal, threading, time
import torch, flashover
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins with it ignored
x = torch.ones(3)
other = threading.Thread(target=lambda: flashover.compile(lambda x: x.sin() + 1)(x), daemon=True)
other.start()
time.sleep(1)
threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begun = time.monotonic()
try:
    flashover.compile(lambda x: x.cos() + 1)(x)
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begun < 2, other.is_alive())
"""
    assert run(code, CXX=str(compiler)).strip() == "interrupted True True"


def test_a_fork_beside_a_build_can_compile(tmp_path: Path) -> None:
    code = """
import os, threading, time
import torch, flashover
x = torch.ones(3)
stop = threading.Event()
def builds():
    i = 0
    while not stop.is_set():
        i += 1
        flashover.compile(eval(f"lambda x: (x * {i}).sin() + 1"))(x)
t = threading.Thread(target=builds); t.start()
for i in range(8):
    time.sleep(0.05)
    pid = os.fork()
    if pid == 0:
        y = flashover.compile(lambda x: x.exp() * 2)(x)
        os._exit(0 if torch.allclose(y, x.exp() * 2) else 1)
    assert os.waitpid(pid, 0)[1] == 0
stop.set(); t.join()
print("fine")
"""
    assert run(code).strip() == "fine"


def test_a_signal_that_waits_when_a_call_begins_is_not_the_programs_own() -> None:
    """Python had noted it already, and the first Python code that ran was the captured one."""
    code = """
import ctypes
trip = ctypes.pythonapi.PyErr_SetInterruptEx
x = torch.randn(4)
def f(n):
    y = (x * n).sin()
    torch._dynamo.graph_break()
    return y + 1
outcomes = []
for i in range(3):
    c = flashover.compile(f)
    try:
        list(map(c, map(trip, [signal.SIGALRM])))  # no instruction between the signal and the call
        outcomes.append("returned")
    except Raised:
        outcomes.append("raised")
    c(1)
print(outcomes, flashover.compile_stats()["eager_calls"])
"""
    assert run(RAISING_HANDLER + code).strip() == "['raised', 'raised', 'raised'] 0"


def test_a_handler_that_raises_beside_another_threads_capture_is_not_the_programs_own() -> None:
    """The other thread runs code of the program's own, with signals as usual, while this one is in a trace."""
    code = """
import threading, time
inside, done = threading.Event(), threading.Event()
def backend(graph, inputs):
    inside.set()
    done.wait(30)
    return graph
other = threading.Thread(target=lambda: flashover.compile(lambda x: x + 1, backend=backend)(torch.ones(3)))
other.start()
inside.wait(30)
def f(x):
    try:
        for i in range(400000):
            pass
        torch._dynamo.graph_break()
        return x * 2
    except BaseException:
        return x - 100
signal.setitimer(signal.ITIMER_REAL, 0.02)
try:
    print(flashover.compile(f)(torch.ones(3)))
except Raised:
    print("raised")
done.set()
other.join()
"""
    assert run(RAISING_HANDLER + code).strip() == "raised"


def test_a_handlers_exception_leaves_a_call_that_is_made_before_the_capture() -> None:
    """What the program's own cached functions give is asked first; what they raise themselves comes in its turn."""
    code = """
import functools, signal, time
import torch, flashover
def handler(*_):
    raise TimeoutError("late")
signal.signal(signal.SIGALRM, handler)
@functools.lru_cache
def slow(n):
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    for _ in range(20):
        time.sleep(0.01)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return n
try:
    flashover.compile(lambda x: x * slow(2) + 1)(torch.ones(3))
    print("returned")
except TimeoutError:
    print("raised", slow.cache_info().misses)
"""
    assert run(code).strip() == "raised 1"
