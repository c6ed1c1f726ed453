"""Signals at random points of a first call: the answer comes within a second, nothing is left behind, the next call is
right.

    python tests/fuzz/fuzz_interrupts.py --count 200 --start 0
    python tests/fuzz/fuzz_interrupts.py --seconds 600

Each case is a forked process that compiles a random program, and a signal that comes after a random time:

    interrupt   SIGINT with Python's handler: KeyboardInterrupt leaves the call
    alarm       SIGALRM with a handler that raises: its exception leaves the call
    flag        SIGTERM with a handler that takes a note: the call goes on, the note stays, it is made once
    terminate   SIGTERM with no handler     } the process is gone, and no compiler of its outlives it;
    kill        SIGKILL                     } the next process sweeps its temporary folders

Half of the cases have other threads that run, compile or fork meanwhile. `--triton` makes cases that build GPU kernels
in Triton's pool (which needs no GPU)."""

from __future__ import annotations

import search_path

import argparse
import collections
import functools
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

# Cases are forked and run backwards: where there is a GPU, autograd's device threads start with the parent's first, and
# forked children may not use autograd any more. (Triton builds without one.)
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import torch._dynamo  # what a program names, and imports in its first call otherwise: that takes seconds
from processes import forked

import flashover
from flashover import _C

KINDS = ("interrupt", "alarm", "flag", "terminate", "kill")
SIGNAL = {
    "interrupt": signal.SIGINT,
    "alarm": signal.SIGALRM,
    "flag": signal.SIGTERM,
    "terminate": signal.SIGTERM,
    "kill": signal.SIGKILL,
}
ANSWER_SECONDS = 1.0
CASE_SECONDS = 120.0


class Layers(torch.nn.Module):
    def __init__(self, count: int, scale: float) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer
        self.layers = torch.nn.ModuleList(layer(32, 4, 64, batch_first=True, dropout=0.0) for _ in range(count))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * self.scale
        return x


def chain(steps: int, scale: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        for i in range(steps):
            x = (x * scale).tanh() + i if i % 3 else torch.nn.functional.layer_norm(x, x.shape[-1:]) * x.softmax(-1)
        return x

    return f


def broken(scale: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = (x * scale).sin()
        os.getpid()
        torch._dynamo.graph_break()
        try:
            x = x.softmax(-1) if x.sum().item() > -1e9 else x
        except Exception:  # an interrupt must not be caught by what is captured
            x = x + 1
        return (x * scale).exp().sum(-1)

    return f


def make(draw: random.Random) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor, bool]:
    """A program, its input and whether it is trained."""
    torch.manual_seed(draw.randrange(1000))
    scale = draw.uniform(0.5, 1.5)
    x = torch.randn(2, 8, 32)
    kind = draw.randrange(4)
    if kind == 0:
        return Layers(draw.randrange(1, 4), scale), x, draw.random() < 0.5
    if kind == 1:
        return chain(draw.randrange(2, 30), scale), x, draw.random() < 0.3
    if kind == 2:
        return broken(scale), x, False
    return chain(draw.randrange(2, 8), scale), x, True


def results(f: Callable[..., torch.Tensor], x: torch.Tensor, trains: bool) -> list[torch.Tensor]:
    if not trains:
        with torch.no_grad():
            return [f(x)]
    x = x.detach().requires_grad_()
    y = f(x)
    (y * y).sum().backward()
    return [y.detach(), x.grad]


def is_right(f: Callable[..., torch.Tensor], compiled: Callable[..., torch.Tensor], x: torch.Tensor, t: bool) -> bool:
    pairs = zip(results(compiled, x, t), results(f, x, t), strict=True)
    return all(torch.allclose(a, b, atol=1e-3, rtol=1e-3) for a, b in pairs)


def processes(folder: str) -> list[str]:
    """Those that run in the folder or were told of it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                if f.read().rsplit(")", 1)[1].split()[0] == "Z":
                    continue
            with open(f"/proc/{pid}/environ", "rb") as f:
                told = folder.encode() in f.read()
            if told or os.readlink(f"/proc/{pid}/cwd").startswith(folder):
                found.append(pid)
        except (OSError, IndexError):
            continue
    return found


def children() -> list[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as f:
        return f.read().split()


def run_beside(draw: random.Random, stop: threading.Event) -> None:
    """What other threads do while the call is compiled."""
    what = draw.randrange(3)
    scale = draw.random()

    def ticks() -> None:
        while not stop.is_set():
            time.sleep(0.001)

    def compiles() -> None:
        f = chain(3, scale)
        x = torch.randn(4, 32)
        assert torch.allclose(flashover.compile(f)(x), f(x), atol=1e-3)

    def forks() -> None:
        while not stop.is_set():
            time.sleep(0.05)
            pid = os.fork()
            if pid == 0:
                signal.alarm(0)
                os._exit(0)
            os.waitpid(pid, 0)

    threading.Thread(target=[ticks, compiles, forks][what], daemon=True).start()


def triton_sources(draw: random.Random) -> list[dict[str, Any]]:
    size = draw.randrange(2, 60) * 32
    text = f"""graph {{
      %0 : f32[{size}] = input user "a"
      %1 : f32[{size}] = aten.mul.Tensor(%0, %0)
      %2 : f32[{size}] = aten.exp.default(%1)
      return %2
    }}"""
    return list(_C.triton_program(text)["kernels"])


class Raised(BaseException):
    """Not what a program under test catches as an Exception."""


def child(seed: int, kind: str, triton: bool, say: int) -> None:
    draw = random.Random(seed)
    notes: list[float] = []

    def note(*_: Any) -> None:
        notes.append(time.monotonic())

    def throw(*_: Any) -> None:
        raise Raised

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, throw)
    signal.signal(signal.SIGTERM, note if kind == "flag" else signal.SIG_DFL)
    out: dict[str, Any] = {"outcome": "done"}
    stop = threading.Event()
    if triton:
        sources = triton_sources(draw)
        call: Callable[[], Any] = functools.partial(_C.triton_build, sources)
    else:
        f, x, trains = make(draw)
        compiled = flashover.compile(f)
        call = functools.partial(results, compiled, x, trains)
        if draw.random() < 0.5:
            run_beside(draw, stop)
    begun = time.monotonic()
    try:
        try:
            os.write(say, b"go\n")
            call()
        finally:
            out["back"] = time.monotonic()
        while kind != "flag" and time.monotonic() < begun + 10:  # it came too late for the call
            time.sleep(0.01)
    except (KeyboardInterrupt, Raised):
        out["outcome"] = "raised" if "back" in out and time.monotonic() - out["back"] < 0.005 else "late"
    if kind == "flag":
        end = time.monotonic() + 5
        while not notes and time.monotonic() < end:
            time.sleep(0.01)
        out["notes"] = len(notes)
        out["back"] = notes[0] if notes else 0
    stop.set()
    # (Triton's server stays when it has answered: the signal came behind the last answer. An interrupted one stops.)
    if out["outcome"] == "raised" and threading.active_count() == 1 and not _C.triton_server_pid():
        out["children"] = len(children())
        out["left"] = os.listdir(os.environ["TMPDIR"])
    if triton:
        cubins = _C.triton_build(sources)
        out["right"] = all(c["bytes"] and not c["error"] for c in cubins)
    else:
        out["right"] = is_right(f, compiled, x, trains) and is_right(f, compiled, x, trains)
        out["kernels"] = flashover.compile_stats()["kernels"]
    os.write(say, json.dumps(out).encode() + b"\n")


def read_line(fd: int, seconds: float) -> bytes:
    line = b""
    end = time.monotonic() + seconds
    while not line.endswith(b"\n"):
        if not select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
            return b"timeout"
        part = os.read(fd, 1 << 16)
        if not part:
            return line
        line += part
    return line


def swept(folder: str) -> list[str]:
    """What is left of the dead process's folders after others have built. A child that it forked may still hold them
    for a moment: it was about to exit."""
    end = time.monotonic() + 2
    while (left := sweep_once(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def sweep_once(folder: str) -> list[str]:
    pid = os.fork()
    if pid == 0:
        try:
            flashover.compile(lambda x: x.cos() * 3)(torch.ones(3))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return os.listdir(folder)


def judge(kind: str, status: int, out: dict[str, Any], sent: float) -> str:
    if kind in ("terminate", "kill"):
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == SIGNAL[kind]:
            return ""
        return f"ended with status {status}"
    if status != 0 or not out:
        return f"ended with status {status}"
    if not out["right"]:
        return "the next call is wrong"
    if out.get("kernels") == 0:
        return "the next call runs eager"
    if kind == "flag" and out["notes"] != 1:
        return f"the handler ran {out['notes']} times"
    if kind != "flag" and out["outcome"] == "done":
        return "the signal was lost"
    if out["back"] - sent > ANSWER_SECONDS and out["outcome"] != "late":
        return f"answered after {out['back'] - sent:.2f} s"
    if out.get("children"):
        return "children are left"
    if out.get("left"):
        return f"left in the temporary folder: {out['left']}"
    return ""


def run_case(seed: int, triton: bool, tally: collections.Counter[str], latencies: list[float]) -> str:
    draw = random.Random(seed * 7 + 1)
    kind = KINDS[seed % len(KINDS)]
    folder = tempfile.mkdtemp(prefix="interrupts-")
    os.environ["TMPDIR"] = folder
    os.environ["FLASHOVER_CACHE_DIR"] = ""
    hear, say = os.pipe()

    def work() -> None:
        os.close(hear)
        child(seed, kind, triton, say)

    pid = forked(work)
    os.close(say)
    problem = ""
    status, out, sent = -1, {}, 0.0
    try:
        if read_line(hear, 30) == b"go\n":
            time.sleep(draw.uniform(0, 0.7) if triton else draw.uniform(0, 0.8) ** 1.5)
            sent = time.monotonic()
            os.kill(pid, SIGNAL[kind])
            line = read_line(hear, CASE_SECONDS)
            if line == b"timeout":
                os.kill(pid, signal.SIGKILL)
                problem = "no answer"
            elif line:
                out = json.loads(line)
        _, status = os.waitpid(pid, 0)
        problem = problem or judge(kind, status, out, sent)
        tally[f"{kind}: {out.get('outcome', 'gone') if kind != 'flag' else 'noted'}"] += 1
        if kind == "interrupt" and out.get("outcome") == "raised":
            latencies.append(out["back"] - sent)
        end = time.monotonic() + 1
        while (left := processes(folder)) and time.monotonic() < end:
            time.sleep(0.02)
        if left and not problem:
            problem = f"processes are left: {left}"
        if kind in ("terminate", "kill") and not problem and (rest := swept(folder)):
            problem = f"not swept: {rest}"
    finally:
        os.close(hear)
        shutil.rmtree(folder, ignore_errors=True)
    return f"seed {seed} ({kind}{', triton' if triton else ''}): {problem}" if problem else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--triton", action="store_true")
    given = parser.parse_args()
    if not given.count and not given.seconds:
        given.count = 50
    torch.set_num_threads(1)
    os.environ["FLASHOVER_CACHE_DIR"] = ""
    first = chain(2, 1.0)  # what is imported once in a process is no part of a case
    results(flashover.compile(first), torch.randn(2, 4), True)
    tally: collections.Counter[str] = collections.Counter()
    latencies: list[float] = []
    problems: list[str] = []
    begun, seed = time.monotonic(), given.start
    while (not given.count or seed < given.start + given.count) and (
        not given.seconds or time.monotonic() - begun < given.seconds
    ):
        problem = run_case(seed, given.triton, tally, latencies)
        if problem:
            problems.append(problem)
            print(problem, flush=True)
        seed += 1
    latencies.sort()
    if latencies:
        print(f"latency: median {latencies[len(latencies) // 2]:.3f} s, most {latencies[-1]:.3f} s")
    print(f"{seed - given.start} cases, {len(problems)} problems; {dict(sorted(tally.items()))}")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
