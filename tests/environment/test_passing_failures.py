"""What fails once, for want of memory or of room for files, fails that call alone: a later one is compiled."""

from __future__ import annotations

import contextlib
import errno
import functools
import re
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import flashover

pytestmark = pytest.mark.filterwarnings("ignore:flashover:RuntimeWarning")

fails_at: set[int] = set()  # which asks of `shape` find no memory, counted from one
asked = 0


@torch.library.custom_op("test_passing_failures::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """An operator whose type the trace asks Python for."""
    return x * 2


@twice.register_fake
def shape(x: torch.Tensor) -> torch.Tensor:
    ask()
    return torch.empty_like(x)


def ask() -> None:
    global asked
    asked += 1
    if asked in fails_at:
        raise MemoryError("the test's")


class TwiceBackwards(torch.autograd.Function):
    """The operator is in the backward alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return twice(grad)


def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Is asked while the call is traced, for each operator."""
    ask()
    return CheckpointPolicy.MUST_SAVE


def forward(x: torch.Tensor) -> torch.Tensor:
    return twice(x.sin()) + 1


def backward(x: torch.Tensor) -> torch.Tensor:
    return TwiceBackwards.apply(x.sin()) + 1


def broken(x: torch.Tensor) -> torch.Tensor:
    y = twice(x.sin())
    torch._dynamo.graph_break()
    return y + 1


def selective(x: torch.Tensor) -> torch.Tensor:
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts) + 1


def eager_calls(compiled: Any, reason: str = "") -> int:
    """How many calls, or parts of them, ran eager for such a reason."""
    return sum(e["count"] for e in compiled.tallies()["eager"] if re.search(reason, e["reason"]))


@pytest.fixture
def memory() -> Iterator[None]:
    """There is memory again."""
    global asked
    asked = 0
    fails_at.clear()
    yield
    fails_at.clear()


# The second ask of `broken` is that of the run up to the break. The operator alone has no derivative.
@pytest.mark.parametrize(
    ("f", "at", "trains"),
    [(forward, 1, False), (backward, 1, True), (broken, 1, False), (broken, 2, False), (selective, 1, True)],
)
@pytest.mark.usefixtures("memory")
def test_no_memory_in_a_trace(f: Callable[[torch.Tensor], torch.Tensor], at: int, trains: bool) -> None:
    fails_at.add(at)
    fast = flashover.compile(f)
    x = torch.randn(5, 3, requires_grad=trains)
    results = [fast(x)]
    assert asked >= at and eager_calls(fast) == eager_calls(fast, "out of memory|std::bad_alloc") == 1
    results += [fast(x) for _ in range(3)]
    assert eager_calls(fast) == 1
    for y in results:
        torch.testing.assert_close(y, f(x))
        if trains:
            torch.testing.assert_close(*(torch.autograd.grad(z.sum(), x)[0] for z in (y, f(x))))


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file can be written. (Python ignores the signal.)"""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("calls", [1, 2])
def test_a_file_that_cannot_be_written_now(calls: int) -> None:
    fast = flashover.compile(lambda x: twice(x.sin()) * (0.4129 + calls), options={"cache": False})
    x = torch.randn(5, 3)
    with full_disk():
        results = [fast(x) for _ in range(calls)]
    assert eager_calls(fast) == eager_calls(fast, "cannot write") == calls
    results += [fast(x) for _ in range(2)]
    assert eager_calls(fast) == calls and asked == calls + 1
    for y in results:
        torch.testing.assert_close(y, twice(x.sin()) * (0.4129 + calls))


@pytest.mark.usefixtures("memory")
def test_files_that_can_never_be_written() -> None:
    """Some calls try, and no more."""
    fast = flashover.compile(lambda x: twice(x.sin()) * 0.4127, options={"cache": False})
    x = torch.randn(5, 3)
    with full_disk(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(8):
            torch.testing.assert_close(fast(x), twice(x.sin()) * 0.4127)
    assert asked == 3 and eager_calls(fast) == 8
    assert len([w for w in said if "runs eager" in str(w.message)]) <= 1  # once in a process


class Finder:
    """Finds a module for which there was no room at first."""

    full = True

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "room_for_a_module":
            return None
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return ModuleSpec(name, None, is_package=True)


def test_a_file_error_of_the_moment_in_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import that the trace comes to fails once; the next call is compiled."""
    finder = Finder()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])

    @flashover.compile
    def f(x: torch.Tensor) -> torch.Tensor:
        import room_for_a_module  # noqa: F401

        return x + 1

    with pytest.raises(OSError, match="No space"):
        f(torch.ones(3))
    finder.full = False
    for _ in range(2):  # the first imports it
        before = flashover.compile_stats()["eager_calls"]
        assert torch.equal(f(torch.ones(3)), torch.full((3,), 2.0))
    assert flashover.compile_stats()["eager_calls"] == before
