"""Parts of a dimension that have one element or none for small sizes are served by the version for larger ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from comparing import differ
from torch import Tensor

import flashover

SIZES = [(4, 7), (5, 16), (4, 8), (3, 9), (2, 13), (6, 31), (8, 32), (7, 2), (3, 3), (12, 64), (7, 17), (1, 5), (2, 4)]


def halves(x: Tensor) -> Tensor:
    half = x.shape[0] // 2
    return x[:half].mean(0) - x[half:].mean(0)


def joined(x: Tensor) -> Tensor:
    n = x.shape[1] // 2
    return torch.cat([x[:, :n], x[:, n:] * 2], 1).cumsum(1)


def split(x: Tensor) -> Tensor:
    n = x.shape[1] // 2
    a, b = x.split([n, x.shape[1] - n], 1)
    return a.sum(1) + b.sum(1)


def thirds(x: Tensor) -> Tensor:
    a, b, c = x.tensor_split(3, 1)
    return a.sum(1) - b.sum(1) * c.sum(1)


def pairs(x: Tensor) -> Tensor:
    return x[:, : x.shape[1] // 2 * 2].reshape(x.shape[0], -1, 2).sum(-1)


def shifted(x: Tensor) -> Tensor:
    y = x.new_zeros(x.shape)
    y[:, 1:] = x[:, :-1].clone()
    y[:, 0] = 2
    return y


def nucleus(x: Tensor) -> Tensor:
    sorted_, order = x.softmax(-1).sort(-1, descending=True)
    mask = sorted_.cumsum(-1) > 0.9
    mask[..., 1:] = mask[..., :-1].clone()
    mask[..., 0] = False
    return x.masked_fill(mask.scatter(1, order, mask), float("-inf")).softmax(-1)


def products(x: Tensor) -> Tensor:
    return torch.einsum("bi,bj->bij", x, x).sum(0) + torch.einsum("bi,bi->", x, x)


PROGRAMS: list[Callable[[Tensor], Tensor]] = [halves, joined, split, thirds, pairs, shifted, nucleus, products]


def gradients(y: Tensor, x: Tensor) -> list[Tensor]:
    """Where they lie, too, but for what eager expands instead of writing."""
    return [g.contiguous() for g in torch.autograd.grad(y.square().sum(), x)] if x.requires_grad else []


def graphs(f: Callable[[Tensor], object], sizes: list[tuple[int, int]], training: bool = False) -> int:
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True, options={"remember_sizes": False})
    before = flashover.compile_stats()["graphs"]
    for size in sizes:
        x = torch.randn(size)
        results = []
        for call in (compiled, f):
            given = x.clone().requires_grad_(training)
            y = call(given)
            results.append([y.detach(), *gradients(y, given)])
        assert (wrong := differ(*results, rtol=1e-5, atol=1e-5)) == "", f"{size}: {wrong}"
    return flashover.compile_stats()["graphs"] - before


@pytest.mark.parametrize("f", PROGRAMS)
def test_two_graphs_serve_all_sizes(f: Callable[[Tensor], Tensor]) -> None:
    assert graphs(f, SIZES) == 2


@pytest.mark.parametrize("f", PROGRAMS)
def test_gradients(f: Callable[[Tensor], Tensor]) -> None:
    assert graphs(f, SIZES[:9], training=True) <= 3


@pytest.mark.parametrize("f", PROGRAMS)
def test_small_sizes_first(f: Callable[[Tensor], Tensor]) -> None:
    assert graphs(f, SIZES[::-1]) <= 4


def test_parts_by_the_chunk() -> None:
    """How many chunks there are is another program; that the last has one element is none."""

    def f(x: Tensor) -> Tensor:
        return torch.cat(x.chunk(3, 1)[::-1], 1)

    assert graphs(f, [(2, n) for n in (6, 16, 5, 7, 8, 9, 10, 3, 31)]) == 2
