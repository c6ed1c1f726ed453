"""CUDA graphs are recorded into memory pools: whatever fails, and whenever another graph goes, torch's allocators count
right. Against a model of torch 2.11's CUDAGraph and of its two allocators' books (no GPU needed)."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from flashover import recording

Handle = tuple[int, int]


class Books:
    """What an allocator of torch's knows of pools."""

    def __init__(self) -> None:
        self.users: dict[Handle, int] = {}
        self.recorded: list[Handle] = []

    def begin(self, pool: Handle) -> None:
        if pool in self.users and self.users[pool] <= 0:
            raise RuntimeError("use_count > 0")
        self.users[pool] = self.users.get(pool, 0) + 1
        if pool in self.recorded:
            raise RuntimeError("already recording")
        self.recorded.append(pool)

    def end(self, pool: Handle) -> None:
        if pool not in self.recorded:
            raise RuntimeError("not currently recording")
        self.recorded.remove(pool)

    def release(self, pool: Handle) -> None:
        if pool not in self.users:
            raise RuntimeError("no such pool")
        self.users[pool] -= 1
        if self.users[pool] < 0:
            raise RuntimeError("uc >= 0")


class World:
    def __init__(self) -> None:
        self.device, self.pinned = Books(), Books()
        self.generator_records = False
        self.stream_records = False
        self.graphs = 0
        self.fails: str | None = None  # at which step the next capture does
        self.handles = 0
        self.before_capture: list[Any] = []  # called once, on the way to the next capture

    def step(self, name: str) -> None:
        if self.fails == name:
            self.fails = None
            raise RuntimeError(name)

    def handle(self) -> Handle:
        self.handles += 1
        return (0, self.handles)

    def memory(self) -> tuple[int, int]:
        while self.before_capture:
            self.before_capture.pop()()
        return 1, 1

    def consistent(self, pools: int = 0) -> None:
        assert not self.device.recorded and not self.pinned.recorded
        assert not self.generator_records and not self.stream_records
        used = [{p: n for p, n in books.users.items() if n} for books in (self.device, self.pinned)]
        assert used[0] == used[1]
        for books in (self.device, self.pinned):
            assert min(books.users.values(), default=0) >= 0
            assert sum(books.users.values()) == self.graphs
            assert sum(n > 0 for n in books.users.values()) == pools


def model(world: World) -> Any:
    class CUDAGraph:
        def __init__(self, keep_graph: bool) -> None:
            self.ended = False
            self.pool: Handle | None = None

        def capture_begin(self, pool: Handle, capture_error_mode: str) -> None:
            assert capture_error_mode == "thread_local"
            world.step("register")
            world.generator_records = True
            world.step("prologue")
            self.pool = pool
            world.device.begin(pool)
            world.step("between")
            world.pinned.begin(pool)
            world.step("stream")
            world.stream_records = True

        def capture_end(self) -> None:
            assert not gc.isenabled()
            if not world.stream_records:
                raise RuntimeError("not capturing")
            world.stream_records = False
            world.step("invalid")
            assert self.pool is not None
            world.device.end(self.pool)
            world.pinned.end(self.pool)
            world.step("epilogue")
            world.generator_records = False
            self.ended = True
            world.graphs += 1

        def instantiate(self) -> None:
            world.step("instantiate")

        def raw_cuda_graph_exec(self) -> int:
            return 42

        def __del__(self) -> None:
            if self.ended:
                world.graphs -= 1
                world.device.release(self.pool)
                world.pinned.release(self.pool)

    cuda = SimpleNamespace(
        CUDAGraph=CUDAGraph,
        current_device=lambda: 0,
        graph_pool_handle=world.handle,
        mem_get_info=world.memory,
        memory_reserved=lambda: 0,
        memory_allocated=lambda: 0,
    )
    calls = SimpleNamespace(
        _cuda_endAllocateToPool=lambda device, pool: world.device.end(pool),
        _cuda_releasePool=lambda device, pool: world.device.release(pool),
    )
    zeros = lambda *args, **kwargs: SimpleNamespace(zero_=lambda: None)  # noqa: E731
    return SimpleNamespace(cuda=cuda, _C=calls, zeros=zeros)


def forget_pinned(books: Books, pool: Handle, began: bool) -> None:
    """As src/run/cuda/record.cpp's."""
    counted = began
    try:
        books.end(pool)
        counted = True
    except RuntimeError:
        pass
    if counted:
        books.release(pool)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(recording, "torch", model(world))
    forget = lambda pool, began: forget_pinned(world.pinned, pool, began)  # noqa: E731
    monkeypatch.setattr(recording, "_C", SimpleNamespace(_forget_pinned_pool=forget))
    return world


def record(pool: recording.Pool) -> recording.Recording:
    made = recording.Recording(pool)
    assert made.end() == 42
    return made


BEGINNING = ["register", "prologue", "between", "stream"]
ENDING = ["invalid", "epilogue"]


def test_graphs_come_and_go(world: World) -> None:
    pool = recording.Pool()
    first = record(pool)
    second = record(pool)
    world.consistent(pools=1)
    del first, second
    world.consistent(pools=1)
    third = record(pool)  # the pool has outlived its graphs
    del pool
    world.consistent(pools=1)
    del third
    gc.collect()
    world.consistent()


def test_the_last_other_graph_goes_before_a_capture(world: World) -> None:
    pool = recording.Pool()
    kept = [record(pool)]
    world.before_capture.append(kept.clear)
    second = record(pool)
    world.consistent(pools=1)
    del second, pool
    world.consistent()


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("step", BEGINNING + ENDING + ["instantiate"])
def test_failures(world: World, step: str, other: bool) -> None:
    pool = recording.Pool()
    kept = record(pool) if other else None
    world.fails = step
    with pytest.raises(RuntimeError, match=step):
        record(pool)
    gc.collect()
    assert world.fails is None and gc.isenabled()
    world.consistent(pools=1)
    again = record(pool)
    world.consistent(pools=1)
    del kept, again, pool
    gc.collect()
    world.consistent()


@pytest.mark.parametrize("step", [None, *ENDING])
def test_abandoned(world: World, step: str | None) -> None:
    pool = recording.Pool()
    kept = record(pool)
    half = recording.Recording(pool)
    assert not gc.isenabled()
    world.fails = step
    half.abandon()
    assert gc.isenabled()
    half.abandon()
    del half
    world.consistent(pools=1)
    again = record(pool)
    del kept, again, pool
    world.consistent()


@pytest.mark.parametrize("step", BEGINNING + ENDING)
def test_a_pool_that_cannot_be_made(world: World, step: str) -> None:
    world.fails = step
    with pytest.raises(RuntimeError, match=step):
        recording.Pool()
    gc.collect()
    world.consistent()
    pool = recording.Pool()
    graph = record(pool)
    world.consistent(pools=1)
    del graph, pool
    world.consistent()
