"""Many threads use the compiler at once, each part of it that threads share: builds, caches, the arena of temporaries,
the table of writes, frozen parts, random states, symbols, statistics. Their results are those of one thread."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from threads import together
from torch import nn

import flashover

THREADS, CALLS = 4, 5
WIDE = 1 << 17  # elements that a kernel shares out to the team


def model(width: int = 16) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 4))


def scaled(k: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: (x * k).sin().sum(-1) + x.amax(-1)


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def square() -> torch.Tensor:
    """Each thread has tensors of its own (docs/limits.md: methods of a tensor that another thread captures)."""
    return torch.linspace(-1, 1, 64).view(8, 8)


def rows() -> torch.Tensor:
    return torch.linspace(-1, 1, 128).view(8, 16)


def test_builds_of_different_kernels() -> None:
    def run(k: int) -> None:
        x = square()
        for i in range(CALLS):
            f = scaled(k * CALLS + i + 0.5)
            close(flashover.compile(f)(x), f(x))

    together(run, THREADS)


def test_builds_of_one_kernel() -> None:
    f = scaled(77.25)
    compiled = [flashover.compile(lambda x: f(x)) for _ in range(THREADS)]
    want = f(square())
    together(lambda k: close(compiled[k](square()), want), THREADS)


def test_large_tensors() -> None:
    """Several callers, each of whose kernels run on a team of threads."""
    x = torch.linspace(-3, 3, WIDE)
    f = lambda x: [(x * 2).sin(), x.cos() + 1, x.exp().sum(), (x - 1).relu().cumsum(0)]  # noqa: E731
    c = flashover.compile(f)
    want = f(x)
    together(lambda k: [close(c(x.clone()), want) for _ in range(CALLS)] and None, THREADS)


@pytest.mark.parametrize("dynamic", [None, True])
def test_shapes(dynamic: bool | None) -> None:
    f = scaled(1.5)
    c = flashover.compile(lambda x: f(x), dynamic=dynamic)

    def run(k: int) -> None:
        for i in range(CALLS):
            x = torch.linspace(0, 1, (k + i + 1) * 4).view(-1, 4)
            close(c(x), f(x))

    together(run, THREADS)


def train(m: nn.Module, seed: int) -> list[torch.Tensor]:
    optimizer = torch.optim.Adam(m.parameters(), 0.01)
    x = torch.linspace(-1, 1, 128).view(8, 16) + seed
    for _ in range(CALLS):
        m(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in m.parameters()]


def test_training_of_a_model_each() -> None:
    want = [train(model(), k) for k in range(THREADS)]
    models = [flashover.compile(model()) for _ in range(THREADS)]
    together(lambda k: close(train(models[k], k), want[k]), THREADS)


def test_a_step_that_is_compiled_whole() -> None:
    models = [model() for _ in range(THREADS)]

    def run(k: int) -> None:
        m = models[k]
        c = flashover.compile(lambda x: torch.autograd.grad(m(x).square().mean(), list(m.parameters())))
        x = rows() + k
        close(c(x), torch.autograd.grad(m(x).square().mean(), list(m.parameters())))

    together(run, THREADS)


def test_backward_of_one_model_in_all_threads() -> None:
    m = model()
    c = flashover.compile(m)
    want = torch.autograd.grad(c(rows()).sum(), list(m.parameters()))

    def run(k: int) -> None:
        for _ in range(CALLS):
            close(torch.autograd.grad(c(rows()).sum(), list(m.parameters())), want)

    together(run, THREADS)


def test_replicas() -> None:
    """As nn.DataParallel runs them; a replica is an ordinary module."""
    m = model()
    c = flashover.compile(m)
    with torch.no_grad():
        want = m(rows())

    @torch.no_grad()
    def run(k: int) -> None:
        replica = c._replicate_for_data_parallel()
        replica._modules = dict(m._modules)
        for _ in range(CALLS):
            close(flashover.compile(replica)(rows()), want)
            close(c(rows()), want)

    together(run, THREADS)


@torch.no_grad()
def test_frozen_weights_that_change() -> None:
    """What was computed of the weights alone is kept between calls: a call that runs while they change may see either,
    later ones the new ones."""
    m, x = model().eval(), rows()
    c = flashover.compile(m)
    c(x)
    over = threading.Event()

    @torch.no_grad()
    def run(k: int) -> None:
        if k:
            while not over.is_set():
                assert c(rows()).isfinite().all()
            return
        try:
            for i in range(20):
                m[0].weight.mul_(1.01)
                m[3].bias.data.add_(i)
        finally:
            over.set()

    together(run, THREADS)
    close(c(x), m(x))


@torch.no_grad()
def test_random_numbers() -> None:
    c = flashover.compile(lambda x: nn.functional.dropout(x, 0.5) + torch.rand(64))

    def run(k: int) -> None:
        for _ in range(CALLS):
            y = c(torch.ones(64))
            assert ((y >= 0) & (y < 3)).all()

    together(run, THREADS)


def test_reset_and_statistics_while_others_call() -> None:
    f = scaled(2.5)
    c, want = flashover.compile(lambda x: f(x)), f(square())

    def run(k: int) -> None:
        for _ in range(CALLS):
            if k == 0:
                flashover.reset()
            elif k == 1:
                assert flashover.compile_stats()
            close(c(square()), want)

    together(run, THREADS)


def test_compiled_functions_die_while_others_are_made() -> None:
    def run(k: int) -> None:
        x = square()
        for i in range(CALLS * 4):
            f = scaled(i % 3 + 0.25)
            close(flashover.compile(f)(x), f(x))
            if i % 4 == k:
                gc.collect()

    together(run, THREADS)


def test_threads_that_come_and_go() -> None:
    """What a thread keeps for itself is freed with it."""
    f = scaled(3.5)
    c, want = flashover.compile(lambda x: f(x)), f(square())
    for _ in range(6):
        together(lambda k: close(c(square()), want), 3)
