"""Torch's CUDA graph objects, where one is made or dropped (src/run/cuda/record.h); replays hardly come here."""

from __future__ import annotations

from contextlib import suppress

import torch


class Recording:
    """What torch's current stream enqueues from now until end()."""

    def __init__(self, pool: tuple[int, int]) -> None:
        self.pool = pool
        self.device = torch.cuda.current_device()
        self.scratch = torch.zeros(1, device="cuda")
        # Graphs have memory of their own: what torch keeps of freed memory may be needed for it.
        free, _ = torch.cuda.mem_get_info()
        if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > free // 2:
            torch.cuda.empty_cache()
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        self.open = True
        try:
            # Other threads may go on doing what a recording one must not.
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        except BaseException:
            self.abandon()
            raise

    def end(self) -> int:
        """The address of the executable graph."""
        self._close()
        self.graph.instantiate()
        return self.graph.raw_cuda_graph_exec()

    def replay(self) -> None:
        """With the next random numbers of torch's generator."""
        self.graph.replay()

    def abandon(self) -> None:
        """Something that cannot be recorded was called."""
        if self.open:
            with suppress(RuntimeError):
                self._close()

    def _close(self) -> None:
        self.open = False
        try:
            self.graph.capture_end()
        except RuntimeError:
            # torch stops halfway then: the allocator and the random generator would believe that a graph is recorded.
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self.device, self.pool)
            with suppress(RuntimeError):
                torch._C._cuda_releasePool(self.device, self.pool)
            with suppress(RuntimeError):
                small = torch.cuda.CUDAGraph()
                small.capture_begin(capture_error_mode="thread_local")
                self.scratch.zero_()
                small.capture_end()
            raise


def pool() -> tuple[int, int]:
    return torch.cuda.graph_pool_handle()
