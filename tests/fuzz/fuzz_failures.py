"""A failure at every site: the n-th allocation (or file call) of a compiled call fails, for every n.

    python tests/fuzz/fuzz_failures.py --seconds 300 --start 7        # sites drawn at random from all
    python tests/fuzz/fuzz_failures.py --every 1 --program training   # all of them, in order, --jobs processes
    python tests/fuzz/fuzz_failures.py --sites 2 --phase cold --jobs 2  # each place of the code that allocates, once
    python tests/fuzz/fuzz_failures.py --every 1 --program views --phase warm --kind new --site 17  # one, its stack

A call has up to 10^5 allocations, but few thousand places that allocate. With --sites K a place is the K innermost
return addresses within our extension (an allocation with none of ours on its stack: all of it, 48 addresses at most);
with --beneath also those of torch and CPython between and beneath them. A run in which nothing fails notes the places;
then one call fails at each: the first there, or the middle or last one (--call). A place that an earlier program comes
to in the same phase is not tried again (--again: it is). The report has a line per program and phase: how many calls
could fail, from how many places; how many of these were its own, i.e. of no earlier program; how many of them failed
(tried), and how many no call came to again (missed). Where no time was left, `left` is not 0; all others are whole.

Each try is a forked child. Of the failing call it asks: the right result, or MemoryError (what torch raises for it is
as good); of a file call: the right result. Afterwards: no hook is left in the interpreter, torch's thread state is as
it was, nothing that lives is a tensor of a trace, and the next calls (the same variant, the other one, one from another
thread) are right and compiled code serves them. Programs: failure_programs.py. Phases:

    cold        the first call, with an empty cache folder: capture, passes, kernels, the compiler
    stored      the first call of a process, its plans stored on disk
    warm        a call that is compiled already
    recompile   a call that has to be compiled again, its plan stored
    backward    the backward of a call
"""

from __future__ import annotations

import search_path

import argparse
import ctypes
import errno
import faulthandler
import gc
import hashlib
import itertools
import json
import mmap
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import failing_calls
from failing_calls import FILES, MALLOC, NEW, Death, Failing

# Children run backwards: where there is a GPU, autograd's device threads start with the parent's first, and forked
# children may not use autograd any more.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

if __name__ == "__main__" and failing_calls.LIBRARY not in os.environ:
    failing_calls.run_again_with_library()

import torch
import torch._dynamo  # a program with torch._dynamo.graph_break() would import it in the midst
from failure_programs import PROGRAMS, World

import flashover

LIMIT = 60  # seconds for one try
SEED = 7  # of random numbers before each call
PHASES = ("cold", "stored", "warm", "recompile", "backward")
PHASE_ORDER = ("warm", "recompile", "backward", "cold", "stored")  # the longer, the later
KINDS = {"new": NEW, "malloc": MALLOC, "files": FILES, "all": NEW}  # all: from the n-th on every operator new fails
ERRORS = (errno.ENOSPC, errno.EMFILE, errno.EIO, errno.EACCES)
RIGHT, RAISED = "right", "raised"


def snapshot(value: Any) -> Any:
    """A copy that later calls do not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: snapshot(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(snapshot(v) for v in value)
    return value


def same(a: Any, b: Any, tolerance: float = 1e-4) -> bool:
    """Do two snapshots say the same?"""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        alike = a.shape == b.shape and a.dtype == b.dtype
        return alike and torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k], tolerance) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@dataclass(frozen=True)
class Target:
    """What is to fail: the n-th call, or the k-th call at a place, among those from the n-th on."""

    n: int = 0  # 0 and no place: nothing fails
    place: int = 0
    k: int = 1


@dataclass
class Seen:
    """What a call gave: its result or its exception, and the state after it."""

    result: Any = None
    raised: BaseException | None = None
    state: Any = None


class Copy:
    """A World with what is called in it: the function itself or the compiled one."""

    def __init__(self, name: str, compiled: bool) -> None:
        self.world: World = PROGRAMS[name]()
        target: Any = self.world.module if self.world.module is not None else self.world.function
        self.call: Any = flashover.compile(target) if compiled else target
        self.last: torch.Tensor | None = None
        self.arm: Callable[[], object] = lambda: None
        self.disarm: Callable[[], object] = lambda: None

    def state(self, variant: int) -> Any:
        """All that calls may change."""
        grads = [p.grad for p in self.world.module.parameters()] if self.world.module is not None else []
        return snapshot((self.world.state(), self.world.inputs(variant), grads))

    def forward(self, variant: int) -> Seen:
        """One call."""
        torch.manual_seed(SEED)
        seen = Seen()
        try:
            inputs = self.world.inputs(variant)
            self.arm()
            result = self.call(*inputs)
            self.disarm()
            self.last = result if self.world.trains else None
            seen.result = snapshot(result)
        except Exception as e:
            self.disarm()
            seen.raised = e
        seen.state = self.state(variant)
        return seen

    def backward(self, variant: int) -> Seen:
        """The backward of the last call."""
        seen = Seen()
        try:
            assert self.last is not None
            loss = self.last.square().sum()
            self.arm()
            loss.backward()
            self.disarm()
        except Exception as e:
            self.disarm()
            seen.raised = e
        seen.state = self.state(variant)
        return seen

    def drop_gradients(self) -> None:
        """As before any backward."""
        self.last = None
        if self.world.module is not None:
            self.world.module.zero_grad(set_to_none=True)


def callable_of(compiled: Any) -> Any:
    """The object that counts the calls of something compiled."""
    found = getattr(compiled, "_flashover_callable", None) or getattr(compiled, "__wrapped_callable__", None)
    return found if found is not None else compiled


def eager_parts(tallies: dict[str, Any]) -> Counter[str]:
    """How often calls, or parts of them, ran eager, by reason. (changing_numbers meets recompile_limit by itself.)"""
    return Counter({e["reason"]: e["count"] for e in tallies["eager"] if e["cause"] != "limit"})


def thread_state() -> tuple[str, ...]:
    """What a call must leave as it was: the frame hook, torch's state of this thread."""
    api = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = ctypes.c_void_p
    api._PyInterpreterState_GetEvalFrameFunc.restype = ctypes.c_void_p
    api._PyInterpreterState_GetEvalFrameFunc.argtypes = [ctypes.c_void_p]
    return (
        f"frame hook {api._PyInterpreterState_GetEvalFrameFunc(api.PyInterpreterState_Get())}",
        f"included keys {torch._C._dispatch_tls_local_include_set()}",
        f"excluded keys {torch._C._dispatch_tls_local_exclude_set()}",
        f"grad mode {torch.is_grad_enabled()}, inference mode {torch.is_inference_mode_enabled()}",
        f"autocast {torch.is_autocast_enabled('cpu')}, compiling {torch.compiler.is_compiling()}",
        f"collector {gc.isenabled()}",
    )


def trace_tensors() -> list[str]:
    """Tensors of a trace that still live."""
    found = []
    for o in gc.get_objects():
        # By type: isinstance looks at __class__, and some of torch's objects warn when an attribute is read.
        if issubclass(type(o), torch.Tensor) and "Fake" in str(torch._C._dispatch_keys(o)):
            found.append(f"{type(o).__name__} {tuple(o.shape)}")
    return found


class Stage:
    """A program at the edge of a phase: each try goes on from here in a child."""

    def __init__(self, failing: Failing, program: str, phase: str, kind: str) -> None:
        self.failing, self.program, self.phase, self.kind = failing, program, phase, kind
        failing.share()
        self.stored = os.environ["FLASHOVER_CACHE_DIR"]
        self.eager, self.compiled = Copy(program, False), Copy(program, True)
        self.variant = 1 if phase == "recompile" else 0
        before = {"cold": 0, "stored": 0, "warm": 3, "recompile": 2, "backward": 2}[phase]
        for _ in range(before):
            self.follow(0)
        if phase == "backward":
            self.eager.forward(0), self.compiled.forward(0)
        self.clean = thread_state()
        gc.collect()
        self.leaked = trace_tensors()
        gc.freeze()  # what lives now is neither looked at again nor copied by the children's collections

    def follow(self, variant: int) -> str:
        """A call in both copies; what is wrong with it."""
        self.eager.drop_gradients(), self.compiled.drop_gradients()
        expected, got = self.eager.forward(variant), self.compiled.forward(variant)
        if got.raised is not None and expected.raised is None:
            return f"raised {got.raised!r}"
        if not same(got.result, expected.result, self.eager.world.tolerance):
            return "its result is wrong"
        if not same(got.state, expected.state):
            return "its effects are wrong"
        if self.eager.world.trains:
            expected, got = self.eager.backward(variant), self.compiled.backward(variant)
            if got.raised is not None:
                return f"backward raised {got.raised!r}"
            if not same(got.state, expected.state):
                return "its gradients are wrong"
        return ""

    def act(self, arm: Callable[[], object]) -> tuple[Seen, int]:
        """The call, armed like this, and how many allocations (or file calls) there were."""
        counted = [0]

        def disarm() -> None:
            counted[0] += self.failing.disarm()
            copy.arm = copy.disarm = lambda: None

        copy = self.compiled
        copy.arm, copy.disarm = arm, disarm
        seen = copy.backward(0) if self.phase == "backward" else copy.forward(self.variant)
        return seen, counted[0]

    def arm(self, target: Target) -> None:
        """So that this call fails."""
        kind, error, all_after = KINDS[self.kind], ERRORS[target.n % len(ERRORS)], self.kind == "all"
        if target.place:
            self.failing.arm_site(kind, target.place, target.n, target.k, error, all_after)
        else:
            self.failing.arm(kind, target.n, error, all_after)

    def empty_cache(self) -> None:
        """In a child: a cold call finds nothing stored."""
        if self.phase == "cold":
            os.environ["FLASHOVER_CACHE_DIR"] = tempfile.mkdtemp(dir=os.environ["FAILURES_SCRATCH"])

    def places(self, frames: int, beneath: bool) -> tuple[int, list[tuple[int, int, int]]]:
        """In a child, one call in which nothing fails: how many could, and their places: hash, first call, calls."""

        def look() -> int:
            self.empty_cache()
            seen, count = self.act(lambda: self.failing.record_sites(KINDS[self.kind]))
            assert seen.raised is None, seen.raised
            return count

        self.failing.make_table(frames, beneath)
        count = in_child(look)
        return count, [(s.hash, s.first, s.count) for s in self.failing.sites()]

    def judge(self, target: Target) -> tuple[str, str, int]:
        """In a child: the outcome, what is wrong (empty: nothing), the number of sites."""
        self.empty_cache()
        before = self.compiled.state(self.variant)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            got, sites = self.act(lambda: self.arm(target))
        expected = self.eager.backward(0) if self.phase == "backward" else None
        if expected is None and got.raised is None:
            expected = self.eager.forward(self.variant)
        outcome, wrong = RIGHT, ""
        apart = False  # the state of the two copies differs for good reason
        if got.raised is not None:
            outcome = f"{RAISED} {type(got.raised).__name__}"
            wrong = self.bad_exception(got.raised)
            if self.phase == "backward":
                pass
            elif not same(got.state, before):
                self.eager.forward(self.variant)
                apart = not same(self.eager.state(self.variant), got.state)
                outcome += ", its effects in part" if apart else ", with its effects"
        elif not same(got.result, expected.result, self.eager.world.tolerance):
            wrong = "the result is wrong"
        elif not same(got.state, expected.state):
            wrong = "the effects are wrong"
        elif len(said) > 1:
            wrong = f"{len(said)} warnings: {[str(w.message) for w in said]}"
        elif said:
            outcome += ", warned"
        return outcome, wrong or self.aftermath(apart), sites

    def bad_exception(self, error: BaseException) -> str:
        """Why a failure may not be told like this."""
        text = f"{type(error).__name__}: {error}"
        fine = isinstance(error, MemoryError) or any(t in text for t in ("bad_alloc", "allocate memory", "MemoryError"))
        stack = self.failing.stack()
        if self.phase == "backward" and any(failing_calls.is_ours(failing_calls.library_of(a)) for a in stack):
            fine = isinstance(error, MemoryError)
        if fine and self.kind != "files":
            return ""
        if isinstance(error, RuntimeError) and "/torch/lib/" in failing_calls.caller(stack):
            return ""  # torch's word for a call of its own that failed (oneDNN: "could not create a primitive")
        return f"raised {text} {''.join(traceback.format_exception(error)[-3:])}"

    def aftermath(self, apart: bool) -> str:
        """What is wrong after the call."""
        now = thread_state()
        if now != self.clean:
            return f"left behind: {[a for a, b in zip(now, self.clean, strict=True) if a != b]}"
        if leaked := self.leaked + trace_tensors():
            return f"tensors of a trace live: {leaked[:5]}"
        for variant in (self.variant, 1 - self.variant, self.variant):
            if variant != self.variant:
                os.environ["FLASHOVER_CACHE_DIR"] = self.stored  # soon done, also for a cold call
            if wrong := self.follow(variant):
                if apart and not wrong.startswith("raised"):
                    continue  # the copies' states differ, their results may
                return f"the next call (variant {variant}): {wrong}"
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(self.follow(self.variant)))
        thread.start()
        thread.join(LIMIT / 2)
        if not found:
            return "a call in another thread does not end"
        if found[0] and not apart:
            return f"the next call in another thread: {found[0]}"
        wrong = self.unserved()
        return "" if apart and wrong.startswith("its ") else wrong

    def unserved(self) -> str:
        """Whether compiled code serves calls again: no call, nor a part of one, runs eager."""
        tallies = callable_of(self.compiled.call).tallies
        before = eager_parts(tallies())
        if wrong := self.follow(self.variant):
            return wrong
        if skipped := tallies()["skipped"]:
            return f"calls are skipped: {skipped}"
        ran = eager_parts(tallies()) - before
        # oneDNN keeps the promise of a primitive whose creation failed: later ones of its kind raise, in torch too.
        if "/torch/lib/" in failing_calls.caller(self.failing.stack()):
            ran = Counter({cause: n for cause, n in ran.items() if "std::future_error: Broken promise" not in cause})
        return f"the next call runs eager: {dict(ran)}" if ran else ""

    def attempt(self, target: Target) -> dict[str, Any]:
        """One child."""
        self.failing.forget_stack()
        with tempfile.TemporaryFile(dir=os.environ["FAILURES_SCRATCH"]) as out:
            inlet, outlet = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(inlet)
                self.attempt_here(target, outlet, out.fileno())
            os.close(outlet)
            with os.fdopen(inlet, "rb") as pipe:
                text = pipe.read()
            status = os.waitpid(pid, 0)[1]
            if text:
                return json.loads(text)
            out.seek(0)
            said = out.read().decode(errors="replace")[-3000:]
        how = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        name = "it hangs" if how == signal.SIGALRM else f"signal {how}" if how else f"exit {os.WEXITSTATUS(status)}"
        return {"outcome": "died", "wrong": f"{name}: {said}", "sites": 0}

    def attempt_here(self, target: Target, outlet: int, log: int) -> NoReturn:
        """In the child: what came of it goes to `outlet`, what it writes to `log`."""
        os.dup2(log, 2)
        signal.alarm(LIMIT)
        faulthandler.enable(log)
        faulthandler.dump_traceback_later(LIMIT - 5, file=log)
        try:
            outcome, wrong, sites = self.judge(target)
        except BaseException:
            self.failing.disarm()
            outcome, wrong, sites = "", "the test: " + traceback.format_exc(), 0
        os.write(outlet, json.dumps({"outcome": outcome, "wrong": wrong[:4000], "sites": sites}).encode())
        os._exit(0)


@dataclass
class Site:
    """A failure to try."""

    program: str
    phase: str
    kind: str
    n: int

    def command(self) -> str:
        """How to see it again."""
        where = f"--program {self.program} --phase {self.phase} --kind {self.kind} --site {self.n}"
        return f"python tests/fuzz/fuzz_failures.py {where}"


class Report:
    """What was tried and found."""

    def __init__(self, whole_stacks: bool = False) -> None:
        self.whole_stacks = whole_stacks
        self.outcomes: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()  # places that no call came to again

    def add(self, site: Site, found: dict[str, Any], stack: list[int], death: Death) -> None:
        """One try."""
        if owner := death.owner():
            found = {"outcome": f"died in {owner}", "wrong": ""}
        self.outcomes[found["outcome"]] += 1
        self.tried[f"{site.program} {site.phase} {site.kind}"] += 1
        if not found["wrong"]:
            return
        ours = [n.split(": ", 1)[1] for n in failing_calls.names_of(stack, "flashover/_C")]
        if stack and not ours and len(stack) < failing_calls.MOST_FRAMES and not self.whole_stacks:
            self.outcomes["wrong, and all of the stack is torch's"] += (
                1  # autograd's engine keeps its thread state then
            )
            return
        key = f"{found['wrong'].splitlines()[0][:60]} | {' < '.join(n[:60] for n in ours[:2])}"
        self.failures[key] += 1
        if self.failures[key] == 1:
            print(f"FAILED {site.command()}\n  {found['wrong']}", flush=True)
            for name in failing_calls.names_of(stack, "" if self.whole_stacks else "flashover/_C")[:40]:
                print(f"    {name[:160]}", flush=True)
            for name in failing_calls.names_of(death.stack):
                print(f"    died: {name[:160]}", flush=True)

    def merge(self, other: dict[str, dict[str, int]]) -> None:
        """Of another process."""
        self.outcomes.update(other["outcomes"])
        self.tried.update(other["tried"])
        self.failures.update(other["failures"])
        self.missed.update(other["missed"])

    def as_dict(self) -> dict[str, dict[str, int]]:
        """For other processes."""
        return {"outcomes": self.outcomes, "tried": self.tried, "failures": self.failures, "missed": self.missed}

    def summary(self, start: int) -> str:
        """One line."""
        return json.dumps(
            {
                "start": start,
                "tries": sum(self.tried.values()),
                "stages": len(self.tried),
                "outcomes": dict(self.outcomes.most_common()),
                "failures": sum(self.failures.values()),
                "kinds of failure": dict(self.failures.most_common(20)),
            }
        )


def stages(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """All (program, phase, kind) that were asked for."""
    every = itertools.product(PROGRAMS, PHASES, ("new", "malloc", "files", "all"))
    wanted = [
        (program, phase, kind)
        for program, phase, kind in every
        if program in (options.program.split(",") if options.program else PROGRAMS)
        and options.phase in ("", phase)
        and options.kind in ("", kind)
    ]
    return [w for w in wanted if w[1] != "backward" or PROGRAMS[w[0]]().trains]


def in_child(work: Any) -> Any:
    """What `work()` gives, run in a forked process; None if that died."""
    inlet, outlet = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(inlet)
        try:
            with os.fdopen(outlet, "w") as pipe:
                json.dump(work(), pipe)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(0)
    os.close(outlet)
    with os.fdopen(inlet) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else None


def try_stage(
    failing: Failing, which: tuple[str, str, str], choose: Any, end: float, whole_stacks: bool = False
) -> dict[str, Any]:
    """In a process of its own: tries the sites of one stage that `choose(count)` names."""
    report = Report(whole_stacks)
    stage = Stage(failing, *which)
    counted = stage.attempt(Target())
    if counted["wrong"]:
        report.add(Site(*which, 0), counted, [], failing.death())
        return report.as_dict()
    for n in choose(counted["sites"]):
        if time.monotonic() > end:
            break
        report.add(Site(*which, n), stage.attempt(Target(n)), failing.stack(), failing.death())
    return report.as_dict()


def fill_cache_once(program: str, filled: set[str]) -> None:
    """In a process of its own, at the first call for a program."""
    if program not in filled:
        in_child(lambda: fill_cache(program))
        filled.add(program)


def fill_cache(program: str) -> None:
    """Plans of both variants, stored on disk."""
    copy = Copy(program, True)
    for variant in (0, 1):
        for _ in range(2):
            copy.forward(variant)
            if copy.world.trains:
                copy.backward(variant)


def try_some(failing: Failing, which: tuple[str, str, str], many: int, seed: float, end: float) -> Any:
    """In a process of its own: so many sites of one stage, drawn at random."""

    def choose(sites: int) -> list[int]:
        some = random.Random(seed)
        return [some.randint(1, sites) for _ in range(many)] if sites else []

    return in_child(lambda: try_stage(failing, which, choose, end))


def random_tries(failing: Failing, options: argparse.Namespace, report: Report) -> None:
    """Stages in random order, some sites of each, until the time is over."""
    rng = random.Random(options.start)
    end = time.monotonic() + options.seconds
    left = options.count
    filled: set[str] = set()
    while time.monotonic() < end and left > 0:
        which = rng.choice(stages(options))
        fill_cache_once(which[0], filled)
        done = try_some(failing, which, min(left, 3 if which[1] == "cold" else 12), rng.random(), end)
        if done is None:
            report.failures[f"the stage {which} died"] += 1
            continue
        report.merge(done)
        left -= max(1, sum(done["tried"].values()))


def all_tries(failing: Failing, options: argparse.Namespace, report: Report) -> None:
    """Every k-th site of every stage, over --jobs processes."""
    end = time.monotonic() + options.seconds
    filled: set[str] = set()
    for program in {w[0] for w in stages(options)}:
        fill_cache_once(program, filled)
    jobs = [(w, k) for w in stages(options) for k in range(options.jobs)]

    def sites(part: int) -> Any:
        first, step = options.start % max(options.every, 1) + 1, max(options.every, 1)
        return lambda count: range(first + part * step, count + 1, step * options.jobs)

    def one(which: tuple[str, str, str], part: int) -> dict[str, Any]:
        choose = (lambda count: [options.site]) if options.site else sites(part)
        return try_stage(failing, which, choose, end, bool(options.site))

    for done in run_many(jobs if not options.site else jobs[:1], one, options.jobs):
        if done is None:
            report.failures["a stage died"] += 1
        else:
            report.merge(done)


class Claims:
    """Which process fails at a place: the first that asks, of all that were forked from this one."""

    SIZE = 1 << 20

    def __init__(self) -> None:
        self.words = (ctypes.c_uint64 * self.SIZE).from_buffer(mmap.mmap(-1, 8 * self.SIZE))
        self.guard = multiprocessing.get_context("fork").Lock()

    def take(self, key: tuple[object, ...]) -> bool:
        """Is it this process?"""
        word = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "little") | 1
        with self.guard:
            for i in range(self.SIZE):
                at = (word + i) % self.SIZE
                if self.words[at] in (0, word):
                    fresh = self.words[at] == 0
                    self.words[at] = word
                    return fresh
        raise RuntimeError("more places than expected")


def try_places(
    failing: Failing,
    which: tuple[str, str, str],
    options: argparse.Namespace,
    backwards: bool,
    claims: Claims,
    end: float,
) -> dict[str, Any]:
    """In a process of its own: fails at those places of a stage that no other process did."""
    report, name = Report(), " ".join(which)
    own = left = 0
    stage = Stage(failing, *which)
    counted = stage.attempt(Target())
    if counted["wrong"]:
        report.add(Site(*which, 0), counted, [], failing.death())
        return report.as_dict()
    calls, places = stage.places(options.sites, options.beneath)
    for place, first, count in reversed(places) if backwards else places:
        if time.monotonic() > end:
            left += 1
            continue
        if not claims.take((which if options.again else which[1:], place)):
            continue
        own += 1
        k = {"first": 1, "middle": (count + 1) // 2, "last": count}[options.call]
        found = stage.attempt(Target(first, place, k))
        if not found["wrong"] and not failing.failed_at():  # it may have come earlier than before
            found = stage.attempt(Target(1, place))
        if not found["wrong"] and not failing.failed_at():
            report.missed[name] += 1
            continue
        report.add(Site(*which, failing.failed_at()), found, failing.stack(), failing.death())
    numbers = {"stage": name, "calls": calls, "places": len(places), "own": own, "left": left}
    return {**report.as_dict(), "numbers": numbers}


def place_tries(failing: Failing, options: argparse.Namespace, report: Report) -> None:
    """One call at each place of each stage; --jobs processes work on a stage."""
    end = time.monotonic() + options.seconds
    claims = Claims()
    all_stages = sorted(stages(options), key=lambda w: PHASE_ORDER.index(w[1]))
    filled: set[str] = set()
    for program in dict.fromkeys(w[0] for w in all_stages):
        fill_cache_once(program, filled)

    def one(which: tuple[str, str, str], part: int) -> Any:
        if time.monotonic() > end:
            return {**Report().as_dict(), "numbers": {"stage": " ".join(which), "left": 1}}
        return try_places(failing, which, options, part % 2 == 1, claims, end)

    lines: dict[str, dict[str, Any]] = {}
    jobs = [(which, part) for which in all_stages for part in range(options.jobs)]
    for done in run_many(jobs, one, options.jobs):
        if done is None:
            report.failures["a stage died"] += 1
            continue
        report.merge(done)
        numbers = done.get("numbers", {})
        line = lines.setdefault(str(numbers.get("stage")), {"parts": 0})
        line["parts"] += 1
        for key, value in numbers.items():
            line[key] = line.get(key, 0) + value if key in ("own", "left") else value
        if line["parts"] == options.jobs:
            name = line["stage"]
            line["tried"], line["missed"] = report.tried[name], report.missed[name]
            print(json.dumps(line), flush=True)


def run_many(jobs: list[Any], work: Any, most: int) -> Iterator[Any]:
    """work(*job) of each, in so many processes at a time."""
    running: dict[int, Any] = {}
    scratch = Path(os.environ["FAILURES_SCRATCH"])
    waiting = list(enumerate(jobs))
    while waiting or running:
        while waiting and len(running) < most:
            number, job = waiting.pop(0)
            pid = os.fork()
            if pid == 0:
                try:
                    (scratch / f"job-{number}").write_text(json.dumps(work(*job)))
                except BaseException:
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(0)
            running[pid] = scratch / f"job-{number}"
        pid, _ = os.wait()
        result = running.pop(pid)
        yield json.loads(result.read_text()) if result.exists() else None


def main() -> int:
    """Tries sites until the time or the sites are over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--start", type=int, default=0, help="the seed; with --every, the first site")
    parser.add_argument("--count", type=int, default=1 << 40, help="at most so many tries")
    parser.add_argument(
        "--every", "--stride", type=int, default=0, help="not at random: each site whose number it divides"
    )
    parser.add_argument(
        "--sites", type=int, default=0, help="each place that allocates: so many frames of ours tell it"
    )
    parser.add_argument(
        "--call", default="first", choices=["first", "middle", "last"], help="with --sites: which there"
    )
    parser.add_argument("--beneath", action="store_true", help="with --sites: torch's frames tell places apart, too")
    parser.add_argument("--again", action="store_true", help="with --sites: also those of an earlier program")
    parser.add_argument("--site", type=int, default=0, help="only this one")
    parser.add_argument("--jobs", type=int, default=1, help="with --every and --sites: processes")
    parser.add_argument("--program", default="", help="or several, with commas; all: " + ", ".join(PROGRAMS))
    parser.add_argument("--phase", default="", choices=["", *PHASES])
    parser.add_argument("--kind", default="", choices=["", *KINDS])
    options = parser.parse_args()
    if unknown := set(filter(None, options.program.split(","))) - set(PROGRAMS):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    # Python 3.12 says so at each fork. The other threads are torch's, which no child uses.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    failing = Failing()
    report = Report()
    own, scratch = os.getpid(), tempfile.mkdtemp(prefix="fuzz-failures-")
    os.environ["FAILURES_SCRATCH"] = scratch
    os.environ["FLASHOVER_CACHE_DIR"] = f"{scratch}/cache"
    tries = place_tries if options.sites else all_tries if options.every or options.site else random_tries
    try:
        tries(failing, options, report)
    finally:
        if os.getpid() == own:
            shutil.rmtree(scratch, ignore_errors=True)
            failing.remove_folder()
    for key, n in report.failures.most_common(40):
        print(f"  x{n}: {key}")
    print(report.summary(options.start), flush=True)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
