"""Functions of torch that want sizes as numbers, or look at them: two compiles, each result and gradient as eager's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import double, no_further_off
from sized_function_programs import INFERENCE_ONLY, PROGRAMS, WAYS
from torch.utils import _pytree as pytree

import flashover

T = torch.Tensor
SIZES = (7, 5, 3, 8, 16, 31, 2, 13)


def outcome(f: Callable[..., Any], args: tuple[T, ...], trains: bool) -> list[T]:
    """Results, and gradients of the sum of their squares."""
    leaves = [t.clone().requires_grad_(trains) for t in args]
    with torch.set_grad_enabled(trains):
        results = [t for t in pytree.tree_leaves(f(*leaves)) if isinstance(t, T)]
    loss = [(t.double() ** 2).sum() for t in results if t.requires_grad]
    gradients = torch.autograd.grad(sum(loss[1:], loss[0]), leaves, allow_unused=True) if loss else ()
    return [t.detach() for t in (*results, *gradients) if t is not None]


def check(f: Callable[..., Any], compiled: Callable[..., Any], args: tuple[T, ...], trains: bool) -> None:
    got, want = outcome(compiled, args, trains), outcome(f, args, trains)
    try:
        exact = outcome(f, tuple(map(double, args)), trains)
    except (RuntimeError, ValueError):  # it has parameters of its own, in fp32
        exact = want
    assert len(got) == len(want)
    for i, (a, b, c) in enumerate(zip(got, want, exact, strict=True)):
        no_further_off(a, b, c if c.is_floating_point() else None, f"{[t.shape for t in args]}, result {i}")


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_compiles_serve_every_size(name: str, trains: bool) -> None:
    if trains and name in INFERENCE_ONLY:
        pytest.skip("its gradient is made for each size")
    f, make = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True, options={"recompile_limit": 64})
    before = flashover.compile_stats()["graphs"]
    for n in SIZES:
        check(f, compiled, make(n), trains)
    assert flashover.compile_stats()["graphs"] - before <= 1 + WAYS.get(name, 1)


@pytest.mark.parametrize("name", PROGRAMS)
def test_few_and_none(name: str) -> None:
    f, make = PROGRAMS[name]
    compiled = flashover.compile(f, options={"recompile_limit": 64})
    for n in (6, 5, 1, 0, 1, 0, 2):
        try:
            f(*make(n))
        except (RuntimeError, IndexError, ZeroDivisionError) as error:
            with pytest.raises(type(error)):
                compiled(*make(n))
        else:
            check(f, compiled, make(n), trains=False)


def test_a_cached_list_of_the_programs_own_stays_one_object() -> None:
    @functools.lru_cache(8)
    def kept(n: int) -> list[int]:
        return [n]

    def f(x: T) -> tuple[T, list[int]]:
        return x + 1, kept(x.shape[0])

    compiled = flashover.compile(f)
    for n in (3, 4, 5):
        assert compiled(torch.ones(n))[1] is kept(n)
        kept(n).append(0)
        assert compiled(torch.ones(n))[1] == [n, 0]


def test_an_effect_behind_a_cache_happens_where_eagers_does() -> None:
    seen = []

    @functools.lru_cache(8)
    def doubled(n: int) -> int:
        seen.append(n)
        return 2 * n

    compiled = flashover.compile(lambda x: x * doubled(x.shape[0]))
    for n in (3, 4, 5, 4, 5, 3, 6):
        assert torch.equal(compiled(torch.ones(n)), torch.full((n,), 2.0 * n))
    assert seen == [3, 4, 5, 6]
