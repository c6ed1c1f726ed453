"""How results lie in memory: strides, storage offset, size of the storage and sharing are eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import flashover

Tensors = Sequence[torch.Tensor]


def parts_of_one(x: torch.Tensor) -> Tensors:
    y = (x + 1).reshape(-1)
    return y[1:5], y[3:9], y[2:4].exp()


def all_of_one(x: torch.Tensor) -> Tensors:
    y = x.exp()[1:]
    return y[1:], y[:, 2], y


def returned_twice(x: torch.Tensor) -> Tensors:
    y = (x + 1)[1:]
    return y, y.clone(), y


def halves_of_a_product(x: torch.Tensor) -> Tensors:
    y = x @ x.t()
    a, b = y.chunk(2, 0)
    return a, b, a + 1


PROGRAMS: dict[str, Callable[[torch.Tensor], Tensors]] = {
    "diagonal": lambda x: ((x + 1).diagonal(),),
    "chunks": lambda x: (x * 2).chunk(2, -1),
    "expanded": lambda x: (x.sum().expand(3, 4), x.sum(0, keepdim=True).expand(5, *x.shape)),
    "repeated": lambda x: ((x + 1).reshape(-1).unfold(0, 3, 1),),
    "part of a product": lambda x: ((x @ x.t())[:, 0],),
    "transposed part of a linear": lambda x: (torch.nn.functional.linear(x, x)[:, :2].t(), x.exp()[2:, 3:]),
    "parts of one": parts_of_one,
    "all of one": all_of_one,
    "returned twice": returned_twice,
    "halves of a product": halves_of_a_product,
}


def geometry(t: torch.Tensor) -> tuple[object, ...]:
    return t.dtype, t.shape, t.stride(), t.storage_offset(), t.untyped_storage().nbytes()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_lie_as_in_eager(name: str) -> None:
    x = torch.randn(6, 6)
    before = flashover.compile_stats()["graphs"]
    with torch.no_grad():
        eager, got = PROGRAMS[name](x), flashover.compile(PROGRAMS[name])(x)
    assert flashover.compile_stats()["graphs"] == before + 1
    assert len(eager) == len(got)
    for i, (e, g) in enumerate(zip(eager, got, strict=True)):
        assert geometry(g) == geometry(e), i
        torch.testing.assert_close(g, e)
        shared = [o.untyped_storage().data_ptr() == e.untyped_storage().data_ptr() for o in eager]
        assert shared == [o.untyped_storage().data_ptr() == g.untyped_storage().data_ptr() for o in got], i


@pytest.mark.timeout(60)
def test_a_write_to_one_result_is_seen_in_another() -> None:
    def parts(x: torch.Tensor) -> Tensors:
        y = x * 2
        return y[:, :4], y[:, 2:]

    with torch.no_grad():
        a, b = flashover.compile(parts)(torch.ones(3, 6))
    a.zero_()
    assert b[:, :2].eq(0).all() and b[:, 2:].eq(2).all()


@pytest.mark.parametrize("base", ["repeated", "overlapping", "transposed"])
def test_scatters_into_memory_that_repeats(base: str) -> None:
    """ATen clones what repeats by stride 0 plainly and keeps the strides of everything else, overlaps too."""
    x = {
        "repeated": torch.arange(4.0).reshape(1, 4).expand(3, 4),
        "overlapping": torch.arange(10.0).as_strided((4, 3), (2, 1)),
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
    }[base]
    for f in (
        lambda x: x.slice_scatter(torch.full((1, x.shape[1]), 9.0), 0, 1, 2),
        lambda x: x.select_scatter(torch.full((x.shape[0],), 7.0), 1, 0),
        lambda x: x.select_scatter(torch.full((x.shape[0],), 7.0), 1, 0) + 1,
        lambda x: (x + 0).expand(2, *x.shape).select_scatter(torch.full(x.shape, 7.0), 0, 0),
        lambda x: x.diagonal_scatter(torch.full((3,), 5.0)),
    ):
        flashover.reset()
        with torch.no_grad():
            want, got = f(x), flashover.compile(f)(x)
        assert torch.equal(got, want) and got.stride() == want.stride()


@pytest.mark.parametrize("turns", range(-1, 4))
def test_a_rotated_row_lies_as_in_eager(turns: int) -> None:
    for x in (torch.randn(16, 1).t(), torch.randn(1, 16), torch.randn(2, 3, 4).transpose(0, 2)):
        rotated = flashover.compile(lambda t: t.rot90(turns, (0, -1)), fullgraph=True)(x)
        expected = x.rot90(turns, (0, -1))
        assert torch.equal(rotated, expected) and rotated.stride() == expected.stride()


def split(t: torch.Tensor, detached: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return (t[1:].detach() if detached else t[1:]), t[:1]


VIEWS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "detach": lambda w: (w.detach(), w),
    "data": lambda w: (w.data, w),
    "view": lambda w: (w.view(-1), w),
    "view of detach": lambda w: (w.detach().view(-1), w),
    "detached view": lambda w: (w.view(-1).detach(), w),
    "detached result": lambda w: (lambda t: (t.detach(), t))(w * 2),
    "parts": lambda w: split(w * 2, False),
    "detached part": lambda w: split(w * 2, True),
}
LATER: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "base requires grad": lambda view, base, q: base.requires_grad_(),
    "base is written": lambda view, base, q: base.mul_(q),
    "view is written": lambda view, base, q: view.mul_(q),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("name", VIEWS)
def test_what_comes_to_require_grad_later(name: str, later: str, mode: Callable[[], Any]) -> None:
    """An alias of what requires no grad yet: autograd follows it to its base as far as in eager."""

    def facts(f: Callable[..., Any]) -> list[Any] | None:
        q = torch.nn.Parameter(torch.full((), 2.0))
        with mode():
            pair = f(torch.ones(3, 2))
        try:
            LATER[later](*pair, q)
            return [(t.requires_grad, t.is_leaf, t._version, t.tolist()) for t in pair]
        except RuntimeError:
            return None

    eager = facts(VIEWS[name])
    got = facts(flashover.compile(VIEWS[name], fullgraph=True))
    assert got == eager or eager is None  # eager refuses writes to views of no_grad blocks
