"""max, min and sum over what an iterator makes of sizes: a list of tensors that is padded to the longest."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from comparing import differ
from torch import Tensor

import flashover


def padded(xs: list[Tensor]) -> Tensor:
    n = max(x.shape[0] for x in xs)
    return torch.stack([F.pad(x, (0, 0, 0, n - x.shape[0])) for x in xs]).cumsum(1)


def written(xs: list[Tensor]) -> Tensor:
    n = max((len(x) for x in xs), default=0)
    out = xs[0].new_zeros(len(xs), n, xs[0].shape[1])
    for row, x in zip(out, xs, strict=True):
        row[: len(x)] = x
    return out * 2


def by_map(xs: list[Tensor]) -> Tensor:
    return torch.zeros(max(map(len, xs)), 2)


def by_map_of_python(xs: list[Tensor]) -> Tensor:
    return torch.zeros(max(map(lambda x: x.shape[0] + 1, xs)), 2)  # noqa: C417


def summed(xs: list[Tensor]) -> Tensor:
    return torch.cat(xs) * sum(x.shape[0] for x in xs)


def with_start(xs: list[Tensor]) -> Tensor:
    return torch.zeros(sum((x.shape[0] for x in xs), 3), sum([len(x) for x in xs], start=1))


def smallest(xs: list[Tensor]) -> Tensor:
    return torch.stack([x[: min(y.size(0) for y in xs)] for x in xs])


PROGRAMS: list[Callable[[list[Tensor]], Tensor]] = [
    padded,
    written,
    by_map,
    by_map_of_python,
    summed,
    with_start,
    smallest,
]


@pytest.mark.parametrize("f", PROGRAMS)
def test_lists_of_any_lengths(f: Callable[[list[Tensor]], Tensor]) -> None:
    drawn = random.Random(0)
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True, dynamic=True, options={"remember_sizes": False})
    before = flashover.compile_stats()["graphs"]
    for _ in range(12):
        xs = [torch.randn(drawn.randint(2, 12), 5) for _ in range(3)]
        assert (wrong := differ(compiled(xs), f(xs))) == "", wrong
    assert flashover.compile_stats()["graphs"] - before == 1


def test_what_python_makes_of_them_stays() -> None:
    """Errors, effects of the generator, iterators that are used up, starts that are no numbers."""

    def f(x: Tensor, seen: list[int]) -> tuple[Tensor, object]:
        def lengths() -> object:
            for part in (x, x[1:], x[2:]):
                seen.append(1)
                yield part.shape[0]

        steps = map(len, (x, x[1:]))
        first, rest = max(steps), max(steps, default=-1)
        joined = sum(([len(p)] for p in (x, x[1:])), [])  # noqa: RUF017
        try:
            max(i for i in ())
        except ValueError as e:
            error = str(e)
        return x * min(lengths()), (first, rest, joined, error, sum(n / 2 for n in x.shape))

    compiled = flashover.compile(f, dynamic=True, options={"remember_sizes": False})
    for n in (5, 6, 9):
        x = torch.randn(n, 4)
        ours: list[int] = []
        theirs: list[int] = []
        got, expected = compiled(x, ours), f(x, theirs)
        assert (wrong := differ(got[0], expected[0])) == "", wrong
        assert got[1] == expected[1]
        assert ours == theirs
