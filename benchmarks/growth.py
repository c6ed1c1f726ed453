"""How the time of a first call grows with the length of a program, without a cache: a table of CPU seconds (of this
process and of the compilers that it ran) and of wall time.

    python benchmarks/growth.py                 # on an idle machine: --strict holds it to the bars below
    python benchmarks/growth.py --strict

The bars are for two cores: 10,000 chained pointwise operators in 10 s, a training step over the sum of 3,000
parameters and 1,000 independent results in 3 s each. tests/repros/superlinear.py checks the growth on busy machines.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ["FLASHOVER_CACHE_DIR"] = ""

import torch

import flashover


@dataclass
class Cost:
    """What a first call took, in seconds."""

    cpu: float
    wall: float


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def cost(work: Callable[[], object]) -> Cost:
    cpu, wall = cpu_seconds(), time.perf_counter()
    work()
    return Cost(cpu_seconds() - cpu, time.perf_counter() - wall)


def chain(n: int) -> Cost:
    """n pointwise operators one after another; constants differ, so that no two kernels are the same."""

    def f(x: torch.Tensor) -> torch.Tensor:
        for i in range(n // 4):
            x = (x - 0.001 * (i % 97)).tanh() * 1.0001 + 0.001 if i % 2 else ((x + 1 / (i + 1)) * 0.5).relu() * 1.5
        return x

    x = torch.randn(16, 64)
    results: list[torch.Tensor] = []
    taken = cost(lambda: results.append(flashover.compile(f)(x)))
    torch.testing.assert_close(results[0], f(x), atol=1e-3, rtol=1e-3)
    return taken


class Sum(torch.nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.p = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(4) * 0.01) for _ in range(n)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for q in self.p:
            x = x + q
        return x


def parameters(n: int) -> Cost:
    """A training step over the sum of n parameters."""
    module, x = Sum(n), torch.randn(4)
    taken = cost(lambda: flashover.compile(module)(x).sum().backward())
    assert all(torch.equal(p.grad, torch.ones(4)) for p in module.parameters() if p.grad is not None)
    assert all(p.grad is not None for p in module.parameters())
    return taken


def results(n: int) -> Cost:
    """n results that do not need each other."""
    x = torch.randn(16, 64)
    got: list[torch.Tensor] = []
    taken = cost(lambda: got.extend(flashover.compile(lambda x: [x * (i + 1) for i in range(n)])(x)))
    assert all(torch.equal(r, x * (i + 1)) for i, r in enumerate(got))
    return taken


# program, its sizes, seconds for the largest
ROWS: list[tuple[Callable[[int], Cost], tuple[int, ...], float]] = [
    (chain, (625, 2500, 10_000), 10.0),
    (parameters, (190, 750, 3000), 3.0),
    (results, (63, 250, 1000), 3.0),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strict", action="store_true", help="exit with 1 where the largest takes more than its bar")
    strict = parser.parse_args().strict
    torch.set_num_threads(1)
    results(3)  # what the first of all calls takes besides
    late = False
    for program, sizes, bar in ROWS:
        for n in sizes:
            taken = program(n)
            late |= n == sizes[-1] and taken.wall > bar
            print(f"{program.__name__:10} {n:6}: {taken.cpu:6.2f} s CPU, {taken.wall:6.2f} s", flush=True)
        print(f"{'':10} at most {bar:g} s")
    return 1 if strict and late else 0


if __name__ == "__main__":
    sys.exit(main())
