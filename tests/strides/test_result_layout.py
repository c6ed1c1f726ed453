"""How results lie in memory: strides, storage offset, size of the storage and sharing are eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import captured_whole
from torch import nn

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


@pytest.mark.parametrize("name", ["slice", "select", "diagonal", "as_strided"])
def test_a_part_put_into_a_view_starts_where_the_view_does(name: str) -> None:
    """Eager writes into a clone of the view's whole storage."""
    put: Callable[[torch.Tensor], torch.Tensor] = {
        "slice": lambda v: v.slice_scatter(v[:1] + 1, 0, 1, 2),
        "select": lambda v: v.select_scatter(v[0] * 2, 0, 1),
        "diagonal": lambda v: v.diagonal_scatter(v.diagonal() * 2),
        "as_strided": lambda v: v.as_strided_scatter(v[0, :3] * 3, (3,), (1,), 12),
    }[name]
    x = torch.arange(30.0).reshape(5, 6)
    for f in (
        lambda x: put(x[1:]),
        lambda x: put((x + 1)[2:])[1:],
        lambda x: put(x[1:4].t()),
        lambda x: put(x[2:]).as_strided((5,), (1,), 12),
    ):
        want, got = f(x), flashover.compile(f, fullgraph=True)(x)
        assert torch.equal(got, want)
        assert (got.stride(), got.storage_offset()) == (want.stride(), want.storage_offset())


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


X = torch.linspace(-2, 2, 2 * 8 * 16).reshape(2, 8, 16)


def test_output_that_an_extern_reads_too() -> None:
    """The output is dense in eager's order, the matrix product was promised the transposed one."""
    norm, linear = nn.LayerNorm(512), nn.Linear(512, 32)

    def f(x: torch.Tensor) -> Any:
        n = norm(x)
        return linear(n), n

    captured_whole(f, torch.randn(1, 512, 12).transpose(1, 2))


def test_copies_of_strided_views() -> None:
    """Cut from the memory of the original, not of the copy."""

    def f(x: torch.Tensor) -> Any:
        return torch.as_strided_copy(x + 1, (2, 2), (1, 2), 3), torch.unfold_copy(x.t() + 1, 0, 3, 2)

    captured_whole(f, X[0])


def test_unpooling_keeps_the_format() -> None:
    x, index = F.max_pool2d(torch.randn(2, 3, 6, 8), 2, return_indices=True)
    for memory in (torch.contiguous_format, torch.channels_last):
        args = (x.contiguous(memory_format=memory), index.contiguous(memory_format=memory))
        captured_whole(lambda x, index: F.max_unpool2d(x, index, 2), *args)


def test_pooling_of_one_image_keeps_its_layout() -> None:
    image = torch.randn(1, 3, 6, 4, 8).contiguous(memory_format=torch.channels_last_3d)[0]
    for x in (image, image.contiguous(), image.transpose(1, 2), image[:1]):
        captured_whole(lambda x: F.max_pool3d(x, 2, return_indices=True), x)


def test_eigenvectors_lie_column_by_column() -> None:
    x = torch.tensor([[2.0, 1.0, 0.0], [0.5, -1.0, 1.0], [0.0, 0.25, 4.0]])
    captured_whole(lambda x: torch.linalg.eig(x), x)
    captured_whole(lambda x: torch.linalg.eig(x * 1j)[1], x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.pad(x, (1, 1, 2, 0), mode="reflect"),
        lambda x: F.pad(x, (1, 1, 2, 0), mode="replicate"),
        lambda x: F.channel_shuffle(x, 2),
    ],
)
def test_formats_that_the_cpu_keeps(function) -> None:
    a = torch.randn(4, 6, 9, 10)
    fast = flashover.compile(function, fullgraph=True)
    for x in (a.contiguous(memory_format=torch.channels_last), a, a.permute(0, 3, 1, 2), a[:, :, :, ::2]):
        got, want = fast(x), function(x)
        assert got.stride() == want.stride() and torch.equal(got, want)


def test_windows_over_what_does_not_lie_together() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.unfold(0, 2, 2).mul_(2)
        return x.unfold(1, 3, 2) + 1, x.unfold(0, 2, 1).sum(-1), y + 1

    fast = flashover.compile(function, fullgraph=True)
    x, y = torch.randn(6, 40)[1:, ::3], torch.randn(6, 40)[:, 1::2]
    mine, theirs = (torch.empty(6, 40)[:, 1::2].copy_(y) for _ in range(2))
    for got, want in zip(fast(x, mine), function(x, theirs), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
    assert torch.equal(mine, theirs)


def test_windows_over_nothing() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.unfold(2, 2, 1) + 1, x.as_strided((3, 0), (1, 1)) * 2, x.abs().unfold(0, 3, 2)

    captured_whole(function, torch.randn(17, 0, 2))


def test_strides_of_dimensions_of_size_one() -> None:
    net = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(32, 8, 3, padding=1, bias=False))
    x = torch.randn(2, 32, 2, 2).to(memory_format=torch.channels_last)
    assert flashover.compile(net)(x).stride() == net(x).stride()


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("dims", [2, 3])
def test_gradients_of_mirrored_padding_keep_the_format(dims: int, mode: str) -> None:
    pad = (1,) * (2 * dims)
    layout = torch.channels_last if dims == 2 else torch.channels_last_3d
    for memory_format in (torch.contiguous_format, layout):
        x = torch.randn(2, 3, *[4] * dims).contiguous(memory_format=memory_format).requires_grad_()
        grads = []
        for f in (F.pad, flashover.compile(F.pad)):
            y = f(x, pad, mode=mode)
            grads += torch.autograd.grad(y.square().sum(), x)
        assert geometry(grads[1]) == geometry(grads[0])
        torch.testing.assert_close(grads[1], grads[0])
