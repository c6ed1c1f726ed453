"""functools.lru_cache and cache inside of compiled code; tensors of inference mode."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import torch
from interpreters import python

import flashover

CALLS: list[Any] = []


@functools.cache
def table(n: int) -> tuple[int, ...]:
    CALLS.append(("table", n))
    return tuple(range(n))


@functools.cache
def doubled(n: int) -> int:
    return n * 2


@functools.lru_cache(2)
def steps(n: int) -> torch.Tensor:
    CALLS.append(("steps", n))
    return torch.arange(n).float()


@functools.lru_cache(maxsize=4)
def pair(n: int, name: str) -> tuple[torch.Tensor, str]:
    return torch.ones(n), name


CACHES = (table, doubled, steps, pair)


def use(x: torch.Tensor) -> Any:
    ones, name = pair(x.shape[0], "p")
    return x * table(3)[1] + doubled(4) + steps(x.shape[0])[:, None] + ones[:, None], name


def rounds(f: Any) -> list[Any]:
    for c in CACHES:
        c.cache_clear()
    doubled(7)
    CALLS.clear()
    out = []
    for _ in range(3):
        value, name = f(torch.ones(3, 2))
        out.append((value.tolist(), name, [tuple(c.cache_info()) for c in CACHES], list(CALLS)))
    return out


def check_the_cache() -> None:
    fast = flashover.compile(use, fullgraph=True)
    want = rounds(use)
    before = flashover.compile_stats()["frames"]
    assert rounds(fast) == want
    assert flashover.compile_stats()["frames"] - before == 1
    assert doubled.cache_info().currsize == 2


def test_the_cache_is_as_in_eager() -> None:
    # On its own: guards that are checked twice (FLASHOVER_CHECK_GUARDS, which fuzz_guards sets) ask the caches twice.
    here = Path(__file__).parent
    env = {k: v for k, v in os.environ.items() if k != "FLASHOVER_CHECK_GUARDS"}
    env["PYTHONPATH"] = os.pathsep.join(
        map(str, [here, here.parent / "support", Path(flashover.__file__).parent.parent])
    )
    code = "import test_function_caches as t; t.check_the_cache()"
    done = python("-c", code, env=env)
    assert done.returncode == 0, done.stderr


def test_a_tensor_that_is_kept_is_one_tensor() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        kept = steps(x.shape[0])
        kept += 1
        return x * kept[:, None]

    want = []
    steps.cache_clear()
    for _ in range(3):
        want.append(f(torch.ones(3, 2)))
    steps.cache_clear()
    fast = flashover.compile(f)
    for w in want:
        torch.testing.assert_close(fast(torch.ones(3, 2)), w)
    assert steps(3).tolist() == [3.0, 4.0, 5.0]


def test_the_function_raises() -> None:
    @functools.cache
    def bad(n: int) -> int:
        CALLS.append(n)
        raise ValueError("no")

    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * bad(3)
        except ValueError:
            return x + 1

    CALLS.clear()
    assert flashover.compile(f)(torch.ones(2)).tolist() == [2.0, 2.0]


def test_tensors_made_in_inference_mode() -> None:
    layer = torch.nn.Linear(4, 4)

    def inside(x: torch.Tensor) -> Any:
        with torch.inference_mode():
            y = layer(x).sin()
            z = y * 2
        return y, z, x * 2

    def across(x: torch.Tensor) -> Any:
        with torch.inference_mode():
            y = layer(x).sin()
            flashover.graph_break()
            z = y * 2
        return y, z, x * 2

    @torch.inference_mode()
    def whole(x: torch.Tensor) -> Any:
        y = layer(x)
        return y, y[0], x[0]

    x = torch.randn(3, 4)
    for f in (inside, across, whole):
        fast = flashover.compile(f)
        for _ in range(2):
            got, want = fast(x), f(x)
            assert [t.is_inference() for t in got] == [t.is_inference() for t in want]
            torch.testing.assert_close(got, want)
            shared = [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in got for b in got]
            assert shared == [
                a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in want for b in want
            ]


def test_an_argument_without_a_hash_is_an_error() -> None:
    def f(x: torch.Tensor, key: Any) -> Any:
        try:
            return x + 1, table(key)
        except TypeError as e:
            return x - 1, str(e)

    for key in ([3], (1, {2: 3})):
        y, text = flashover.compile(f)(torch.ones(2), key)
        assert text.startswith("unhashable type") and y.tolist() == [0.0, 0.0]
