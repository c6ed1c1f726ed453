"""Writes through a view of memory that the operator reads by another one. ATen refuses them where the layout tells;
else its loop reads some elements after it wrote them, and compiled code has to give what comes of that."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import flashover

View = tuple[tuple[int, ...], tuple[int, ...], int]  # sizes, strides, offset
Write = Callable[[torch.Tensor], object]

# What was written is read later, so the order counts.
ORDERED: dict[str, Write] = {
    "product": lambda x: x.flatten()[:6:2].mul_(x.flatten()[:3]),
    "sum into a result": lambda x: torch.add(x[0, ::2], x[0, :3], out=x[0, ::2]),
    "moved back": lambda x: x[:, 1:].copy_(x[:, :-1]),
    "moved right, columns first": lambda x: x.t()[1:].copy_(x.t()[:-1]),
    "rows of indices": lambda x: x.index_add_(1, torch.tensor([1, 0]), x.narrow(1, 0, 2)),
    "scattered": lambda x: x.scatter_(1, torch.tensor([[1, 0]]), x.narrow(1, 0, 2)),
}
# What is read was not written, or is not any more.
WHOLE: dict[str, Write] = {
    "moved forward": lambda x: x[:, :-1].copy_(x[:, 1:]),
    "halves": lambda x: x[:, :3].mul_(x[:, 3:]),
    "even and odd": lambda x: x[:, ::2].add_(x[:, 1::2]),
    "a column into others": lambda x: x[:, 1:].sub_(x[:, :1]),
    "in itself": lambda x: x[:, 1:].mul_(x[:, 1:]),
    "copied before": lambda x: x[:, 1:].copy_(x[:, :-1].flip(1)),
}


def memory() -> torch.Tensor:
    return torch.linspace(-2, 3, 36).reshape(6, 6)


def written(write: Write) -> torch.Tensor:
    x = memory()
    write(x)
    return x


@pytest.mark.parametrize("name", ORDERED)
def test_what_eagers_order_decides_is_eagers(name: str) -> None:
    write = ORDERED[name]
    with pytest.raises(flashover.exc.Unsupported, match="depends on its order"):
        written(flashover.compile(write, fullgraph=True))
    flashover.reset()
    assert torch.equal(written(flashover.compile(write)), written(write))


@pytest.mark.parametrize("name", WHOLE)
def test_other_views_of_the_memory_are_captured(name: str) -> None:
    write = WHOLE[name]
    assert torch.equal(written(flashover.compile(write, fullgraph=True)), written(write))


def test_a_difference_is_one() -> None:
    """The order does count: computed from a copy the results are others."""
    x = memory()
    x[:, 1:] = x[:, :-1].clone()
    assert not torch.equal(x, written(ORDERED["moved back"]))


def some_view(draw: random.Random, sizes: tuple[int, ...]) -> View:
    strides = tuple(draw.choice([1, 2, 3, 5, 6, 7]) for _ in sizes)
    span = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return sizes, strides, draw.randrange(36 - span)


def places(view: View) -> list[int]:
    sizes, strides, offset = view
    return torch.arange(36).as_strided(sizes, strides, offset).flatten().tolist()


@pytest.mark.filterwarnings("ignore:flashover")  # layouts that no kernel writes
def test_random_views() -> None:
    draw = random.Random(5)
    apart = met = 0
    while apart < 20 or met < 20:
        sizes = draw.choice([(3,), (2, 3), (3, 2), (2, 2, 2)])
        to, of = some_view(draw, sizes), some_view(draw, sizes)
        if len(set(places(to))) < len(places(to)):
            continue
        meet = not set(places(to)).isdisjoint(places(of))
        if (met if meet else apart) >= 20:
            continue

        def write(x: torch.Tensor, to: View = to, of: View = of) -> None:
            x.as_strided(*to).copy_(x.as_strided(*of))

        try:
            want = written(write)
        except RuntimeError:  # ATen's check
            continue
        met, apart = met + meet, apart + (not meet)
        flashover.reset()
        assert torch.equal(written(flashover.compile(write, fullgraph=not meet)), want), (to, of)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.flatten()[:4].copy_(x.flatten()[1:5]),
        lambda x: x.flatten()[:4].view(2, 2).t().copy_(x.flatten()[:4].view(2, 2)),
        lambda x: x.flatten()[:4].add_(x.flatten()[1:5]),
    ],
)
def test_what_eager_refuses_is_refused(write: Write) -> None:
    for f in (write, flashover.compile(write)):
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
            written(f)
