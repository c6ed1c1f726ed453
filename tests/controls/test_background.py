"""options={"compile": "background"}: calls run eager and do not wait until the code is there; deadline, cancelling,
threads, forks and the end of the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from interpreters import python

import flashover
from flashover import _C, exc

BACKGROUND = {"compile": "background", "cache": False}
SLOW_COMPILER = """
import os, sys, time
time.sleep(float(os.environ["COMPILER_SECONDS"]))
os.execvp("g++", ["g++", *sys.argv[1:]])
"""


@pytest.fixture(autouse=True)
def idle() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said of calls that are to run eager for a while
        yield
    assert flashover.wait_until_compiled(60)


@pytest.fixture
def slow_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "cxx.py"
    script.write_text(SLOW_COMPILER)
    monkeypatch.setenv("CXX", f"{sys.executable} {script}")
    monkeypatch.setenv("COMPILER_SECONDS", "3")


def f(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin().softmax(-1)


def state_of(fast: object) -> str:
    return fast.entries()[0]["state"]  # type: ignore[attr-defined, no-any-return]


def test_calls_do_not_wait(slow_compiler: None) -> None:
    fast, x = flashover.compile(f, options=BACKGROUND), torch.randn(4, 8)
    start = time.perf_counter()
    assert torch.equal(fast(x), f(x)) and torch.equal(fast(x), f(x))
    assert time.perf_counter() - start < 2
    assert state_of(fast) == "compiling" and _C.background_jobs() == 1
    assert fast.stats().eager_calls == 2 and fast.stats().compiling == 1
    assert flashover.wait_until_compiled(60)
    assert state_of(fast) == "compiled" and fast.stats().kernels == 1
    torch.testing.assert_close(fast(x), f(x))
    assert fast.stats().eager_calls == 2 and fast.stats().compiling == 0


def test_training(slow_compiler: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    fast, x = flashover.compile(model, options=BACKGROUND), torch.randn(4, 8)
    gradients = []
    for _ in range(3):
        model.zero_grad()
        fast(x).sum().backward()
        gradients.append(model[0].weight.grad.clone())
        flashover.wait_until_compiled()
    assert [e["state"] for e in flashover.live(fast)._entries()] == ["compiled"]
    torch.testing.assert_close(gradients[0], gradients[2])


def test_after_graph_breaks() -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        flashover.graph_break()
        return y.cos() * 2

    fast, x = flashover.compile(g, options=BACKGROUND), torch.randn(16)
    for _ in range(4):
        torch.testing.assert_close(fast(x), g(x))
        flashover.wait_until_compiled()
    assert sorted((e["state"], bool(e["continues"])) for e in fast.entries()) == [
        ("compiled", False),
        ("compiled", True),
    ]


def test_sizes_that_change() -> None:
    fast = flashover.compile(f, options=BACKGROUND)
    for rows in (3, 4, 5, 6):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(fast(x), f(x))
        flashover.wait_until_compiled()
    assert [e["state"] for e in fast.entries()] == ["compiled", "compiled"]


def test_a_deadline(slow_compiler: None) -> None:
    fast, x = flashover.compile(f, options={**BACKGROUND, "compile_deadline": 1}), torch.randn(4, 8)
    fast(x)
    start = time.perf_counter()
    assert flashover.wait_until_compiled(60) and time.perf_counter() - start < 2.5
    with pytest.warns(exc.EagerWarning, match="took longer than the option compile_deadline allows"):
        assert torch.equal(fast(x), f(x))
    assert state_of(fast) == "eager"


def test_cancelling(slow_compiler: None) -> None:
    fast, x = [flashover.compile(f, options=BACKGROUND) for _ in range(2)], torch.randn(4, 8)
    for one in fast:
        one(x)
    start = time.perf_counter()
    flashover.cancel_compiles()
    assert flashover.wait_until_compiled(60) and time.perf_counter() - start < 2
    for one in fast:
        assert torch.equal(one(x), f(x))
        one.reset()
        one(x)
    assert flashover.wait_until_compiled(60)
    torch.testing.assert_close(fast[0](x), f(x))
    assert state_of(fast[0]) == "compiled"


def test_other_compilations_meanwhile_run_eager_or_wait(slow_compiler: None) -> None:
    fast, x = flashover.compile(f, options=BACKGROUND), torch.randn(4, 8)
    fast(x)
    other = flashover.compile(lambda x: x.cos() + 1, options=BACKGROUND)
    start = time.perf_counter()
    torch.testing.assert_close(other(x), x.cos() + 1)
    assert time.perf_counter() - start < 2
    waits = flashover.compile(lambda x: x.tan() + 1)
    torch.testing.assert_close(waits(x), x.tan() + 1)
    assert waits.stats().graphs == 1


def test_a_failure_is_said_at_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    fast, x = flashover.compile(f, options=BACKGROUND), torch.randn(4, 8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fast(x)
        flashover.wait_until_compiled(60)
        assert torch.equal(fast(x), f(x))
    assert any("this machine cannot compile" in str(w.message) for w in caught)


def test_many_threads() -> None:
    fast = [flashover.compile(lambda x, k=k: (x * k).sin() + k, options=BACKGROUND) for k in range(4)]
    failures: list[str] = []

    def work() -> None:
        for _ in range(30):
            for k, one in enumerate(fast):
                x = torch.randn(8)
                if not torch.allclose(one(x), (x * k).sin() + k, atol=1e-5):
                    failures.append(f"{k}")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert flashover.wait_until_compiled(60) and not failures
    x = torch.randn(8)
    for k, one in enumerate(fast):
        flashover.wait_until_compiled(60)
        torch.testing.assert_close(one(x), (x * k).sin() + k)


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return python("-c", code, env=os.environ | env, timeout=100)


START = """
import os, sys, torch, flashover
fast = flashover.compile(lambda x: x.sin() + 1, options={"compile": "background", "cache": False})
x = torch.ones(3)
fast(x)
"""


def test_the_process_ends_while_something_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "cxx.py").write_text(SLOW_COMPILER)
    start = time.perf_counter()
    done = run(START + "print('end')", CXX=f"{sys.executable} {tmp_path / 'cxx.py'}", COMPILER_SECONDS="100")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
    assert time.perf_counter() - start < 80


def test_a_forked_child_compiles_for_itself(tmp_path: Path) -> None:
    (tmp_path / "cxx.py").write_text(SLOW_COMPILER)
    code = START + (
        "child = os.fork()\nassert torch.equal(fast(x), x.sin() + 1)\nassert flashover.wait_until_compiled(60)\n"
        "assert torch.allclose(fast(x), x.sin() + 1) and fast.entries()[0]['state'] == 'compiled', fast.entries()\n"
        "if not child: os._exit(0)\nprint(os.waitpid(child, 0)[1])"
    )
    done = run(code, CXX=f"{sys.executable} {tmp_path / 'cxx.py'}", COMPILER_SECONDS="1")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_what_is_looked_at_is_compiled_at_once(slow_compiler: None) -> None:
    fast, x = flashover.compile(f, options=BACKGROUND), torch.randn(4, 8)
    assert len(flashover.explain(fast)(x).kernels) == 1
    assert flashover.lower(fast, x).cost_analysis().flops > 0
    assert _C.background_jobs() == 0


def test_a_wait_has_an_end(slow_compiler: None) -> None:
    fast = flashover.compile(f, options=BACKGROUND)
    fast(torch.randn(4, 8))
    assert not flashover.wait_until_compiled(0.1)
