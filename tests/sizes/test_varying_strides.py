"""Strides that no size explains (parts of buffers whose width changes) are symbols, as sizes are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from comparing import differ
from torch import Tensor
from torch.nn import functional as F

import flashover

# rows, width of the buffer, columns of the part
PARTS = [(4, 32, 8), (5, 48, 9), (3, 40, 11), (6, 64, 12), (2, 33, 7), (4, 100, 50), (7, 9, 8)]


def part(rows: int, width: int, columns: int) -> Tensor:
    return torch.randn(rows, width)[:, :columns]


def scaled(x: Tensor) -> Tensor:
    return x / x.stride(0) ** 0.5


def windows(x: Tensor) -> Tensor:
    return x.unfold(1, 3, 2) * 2


def strides(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    return x.t() * x.stride(0), x.t().stride()


def written(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.reshape(-1) + 1


PROGRAMS: list[Callable[[Tensor], object]] = [
    *(lambda x: x.sin() * 2, lambda x: (x * 2).softmax(-1), lambda x: x.sum(0), lambda x: x @ x.t()),
    *(lambda x: x.flatten(), lambda x: torch.cat([x, x + 1], 1), scaled, windows, strides, written),
]


def graphs(f: Callable[..., object], calls: list[tuple[Tensor, ...]], dynamic: bool | None = True) -> int:
    before = flashover.compile_stats()["graphs"]
    g = flashover.compile(f, dynamic=dynamic, fullgraph=True, options={"remember_sizes": False})
    for call in calls:
        mine = tuple(copied(t) for t in call)
        assert not differ(f(*call), g(*mine))
        assert not differ(call, mine), "what it wrote"
    return flashover.compile_stats()["graphs"] - before


def copied(t: Tensor) -> Tensor:
    """The same elements in the same places of other memory."""
    return torch.empty(0).set_(t.untyped_storage().clone(), t.storage_offset(), t.shape, t.stride())


@pytest.mark.parametrize("f", PROGRAMS)
def test_one_graph_serves_all_widths(f: Callable[[Tensor], object]) -> None:
    assert graphs(f, [(part(*p),) for p in PARTS]) == 1
    assert graphs(f, [(part(*p),) for p in PARTS], dynamic=None) == 2


def test_the_whole_width_is_another_layout() -> None:
    """A program that asks whether the tensor is contiguous has a version for each answer."""
    calls = [(part(*p),) for p in [*PARTS, (4, 8, 8), (5, 9, 9)]]
    assert graphs(lambda x: x + 1 if x.is_contiguous() else x - 1, calls) == 2
    assert graphs(lambda x: x.sum(0), calls) == 1


def test_caches_of_changing_length() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    def cached(batch: int, length: int, used: int) -> tuple[Tensor, ...]:
        k, v = torch.randn(2, batch, 2, length, 8)[..., :used, :].unbind()
        return torch.randn(batch, 2, 1, 8), k, v

    calls = [cached(*c) for c in [(2, 16, 5), (3, 32, 6), (2, 64, 7), (2, 64, 8), (3, 48, 20), (4, 100, 9)]]
    assert graphs(attend, calls) == 1


def test_overlapping_elements_are_no_parts() -> None:
    """Rows that share elements keep what they are; that rows do not is guarded."""
    x = torch.arange(64.0)
    calls = [(x.as_strided((4, 8), (s, 1)),) for s in (16, 12, 9, 4, 5, 3)]
    assert graphs(lambda x: x.cumsum(1), calls) <= 3


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_lie_as_eagers_do(dynamic: bool | None) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).tanh().softmax(-1) * x

    before = flashover.compile_stats()["graphs"]
    g = flashover.compile(f, dynamic=dynamic, fullgraph=True, options={"remember_sizes": False})
    for rows, width, columns in PARTS:
        x, w = part(rows, width, columns).requires_grad_(), torch.randn(rows, 1, requires_grad=True)
        want, got = f(x, w), g(x, w)
        grads = [torch.autograd.grad(y.square().sum(), (x, w)) for y in (want, got)]
        assert not differ((want, *grads[0]), (got, *grads[1]))
        assert [t.stride() for t in grads[0]] == [t.stride() for t in grads[1]]
    assert flashover.compile_stats()["graphs"] - before <= (1 if dynamic else 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_custom_backend_gets_them(backend: str) -> None:
    made = []

    def counting(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        from torch._dynamo.backends.registry import lookup_backend

        made.append(module)
        return lookup_backend(backend)(module, inputs)

    g = flashover.compile(scaled, backend=counting, dynamic=True)
    for p in PARTS:
        x = part(*p)
        torch.testing.assert_close(g(x), scaled(x))
    assert len(made) == 1


def test_what_the_user_sees() -> None:
    g = flashover.compile(lambda x: x.flatten(), dynamic=True, options={"remember_sizes": False})
    g(part(4, 32, 8))
    (version,) = g.versions
    assert any("x.shape[1] <= x.stride(0)" in guard for guard in version.guards), version.guards
    assert set(version.sizes) == {"x.shape[0]", "x.shape[1]", "x.stride(0)"}
