"""A full cache serves a process that finds no compiler: nothing runs eager and nothing is warned about."""

import os
import warnings

import torch

import flashover


def work(hits: int) -> None:
    warnings.simplefilter("error")
    x = torch.ones(8, 8, requires_grad=True)
    compiled = flashover.compile(lambda x: (x * 2).relu().softmax(-1))
    torch.testing.assert_close(compiled(torch.ones(8, 8)), torch.full((8, 8), 0.125))
    compiled(x).sum().backward()
    stats = flashover.compile_stats()
    assert stats["kernels"] > 0 and stats["cache_hits"] == hits, stats


for path, hits in ((os.environ["PATH"], 0), (os.environ["PATH"], 2), ("/nowhere", 2)):
    pid = os.fork()
    if pid == 0:
        os.environ["PATH"] = path
        work(hits)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, (path, hits)
