"""The time of a first call grows about as the program does: 10,000 chained pointwise operators take at most 10 s, a
training step over the sum of 3,000 parameters and 1,000 independent results at most 3 s each (two cores, no cache).
"""
# process: fresh
# limit: 300

import os
import time

os.environ["FLASHOVER_CACHE_DIR"] = ""

import torch

import flashover

SLACK = float(os.environ.get("FLASHOVER_TEST_SLACK", "1"))  # for machines that do other work at the same time


def first_call(function, *args) -> tuple[float, torch.Tensor]:
    compiled = flashover.compile(function)
    start = time.process_time(), time.perf_counter()
    result = compiled(*args)
    return time.perf_counter() - start[1], result


def chain(n: int):
    def f(x):
        for i in range(n // 4):
            x = (x - 0.001).tanh() * 1.0001 + 0.001 if i % 2 else ((x + 1) * 0.5).relu() * 1.5
        return x

    return f


def wide(n: int):
    return lambda x: [x * (i + 1) for i in range(n)]


class Sum(torch.nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.p = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(4) * 0.01) for _ in range(n)])

    def forward(self, x):
        for q in self.p:
            x = x + q
        return x


def training(n: int) -> float:
    module = Sum(n)
    x = torch.randn(4)
    start = time.perf_counter()
    flashover.compile(module)(x).sum().backward()
    seconds = time.perf_counter() - start
    assert all(torch.equal(p.grad, torch.ones(4)) for p in module.p)
    torch.testing.assert_close(flashover.compile(module)(x), module(x))
    return seconds


def bar(name: str, seconds: float, most: float) -> None:
    print(f"{name}: {seconds:.2f} s (at most {most * SLACK:g})", flush=True)
    assert seconds <= most * SLACK, f"{name}: {seconds:.2f} s"


torch.set_num_threads(1)
x = torch.randn(16, 64)
seconds, result = first_call(chain(10_000), x)
torch.testing.assert_close(result, chain(10_000)(x), atol=1e-3, rtol=1e-3)
bar("chain of 10,000", seconds, 10)
bar("3,000 parameters", training(3_000), 3)
before = flashover.compile_stats()["kernels"]
seconds, results = first_call(wide(1_000), x)
assert all(torch.equal(r, x * (i + 1)) for i, r in enumerate(results))
bar("1,000 results", seconds, 3)
assert flashover.compile_stats()["kernels"] - before <= 60, flashover.compile_stats()
