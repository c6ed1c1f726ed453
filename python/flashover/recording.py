"""Torch's CUDA graph objects, where one is made or dropped (src/run/cuda/record.h); replays hardly come here."""

from __future__ import annotations

import gc
from contextlib import suppress

import torch

from flashover import _C

Handle = tuple[int, int]


class Capture:
    """What torch's current stream enqueues, from now until end(), as a graph of torch's.

    Torch stops halfway when a capture cannot begin or end: its allocators, for the device and for pinned memory, and
    the random generator would believe for ever that a graph is recorded, and count one that uses the pool.
    """

    def __init__(self, pool: Handle, first_try: bool = True) -> None:
        self.pool = pool
        self.first_try = first_try
        self.device = torch.cuda.current_device()
        self.scratch = torch.zeros(1, device="cuda")
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        # A graph of torch's that goes while this thread records would end the recording.
        self.collects = gc.isenabled()
        gc.disable()
        try:
            # Other threads may go on doing what a recording one must not.
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        except BaseException:
            with suppress(RuntimeError):
                self._end(began=False)
            raise

    def end(self) -> None:
        self._end(began=True)

    def _end(self, began: bool) -> None:
        try:
            self.graph.capture_end()
        except RuntimeError:
            self._clean_up(began)
            raise
        finally:
            if self.collects:
                gc.enable()

    def _clean_up(self, began: bool) -> None:
        # Whoever never came to the allocator does not count there: releasing would be for another graph.
        counted = began
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self.device, self.pool)
            counted = True
        if counted:
            with suppress(RuntimeError):
                torch._C._cuda_releasePool(self.device, self.pool)
        _C._forget_pinned_pool(self.pool, began)
        if self.first_try:
            # At the end of a capture the random generator is no longer recorded.
            with suppress(RuntimeError):
                small = Capture(torch.cuda.graph_pool_handle(), first_try=False)
                small.scratch.zero_()
                small.end()


class Pool:
    """Memory for graphs. Torch gives up a pool with its last graph, for good: it may not be used any more. Other graphs
    may go at any time, so there is one that does nothing and lives as long as the pool."""

    def __init__(self) -> None:
        self.handle: Handle = torch.cuda.graph_pool_handle()
        self.anchor = Capture(self.handle)
        self.anchor.scratch.zero_()
        self.anchor.end()


class Recording:
    """What torch's current stream enqueues from now until end()."""

    def __init__(self, pool: Pool) -> None:
        # Graphs have memory of their own: what torch keeps of freed memory may be needed for it.
        free, _ = torch.cuda.mem_get_info()
        if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > free // 2:
            torch.cuda.empty_cache()
        self.open = False
        self.capture = Capture(pool.handle)
        self.open = True

    def end(self) -> int:
        """The address of the executable graph."""
        self.open = False
        self.capture.end()
        self.capture.graph.instantiate()
        return self.capture.graph.raw_cuda_graph_exec()

    def replay(self) -> None:
        """With the next random numbers of torch's generator."""
        self.capture.graph.replay()

    def abandon(self) -> None:
        """Something that cannot be recorded was called."""
        if self.open:
            self.open = False
            with suppress(RuntimeError):
                self.capture.end()
