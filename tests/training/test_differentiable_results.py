"""Which results of a compiled function have a gradient, which share memory, and backwards of some of them only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import agree
from differentiating import compiled, leaf

import flashover

pytestmark = pytest.mark.timeout(300)


def test_unused_parameters_and_inputs_have_no_gradient() -> None:
    agree(lambda x, y: (x * 2, y.detach() * 3), leaf(3), leaf(3))


def test_partial_backward_leaves_the_rest_undefined() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp(), (y * x.detach()).sin()

    x, y = leaf(3), leaf(3)
    a, _ = compiled(f)(x, y)
    a.sum().backward()
    assert y.grad is None
    torch.testing.assert_close(x.grad, x.exp().detach())


def losses_of_two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x.log() * 3).exp(), x.sin() * w


@pytest.mark.parametrize("backend", ["flashover", "eager"])
def test_unused_results_add_nothing(backend: str) -> None:
    """The gradient of an unused result is absent, not zero: zero times infinity would be NaN."""
    fast = flashover.compile(losses_of_two, fullgraph=True, backend=backend, options={"verify": True})
    for _ in range(2):
        x, w = torch.zeros(4, requires_grad=True), torch.ones(4, requires_grad=True)
        fast(x, w)[1].sum().backward()
        assert torch.equal(x.grad, torch.ones(4)) and torch.equal(w.grad, torch.zeros(4))
        x, w = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
        fast(x, w)[0].sum().backward()
        assert w.grad is None
        torch.testing.assert_close(x.grad, torch.full((4,), 3.0))


def test_backward_of_results_one_after_the_other() -> None:
    """As in eager, results that share no saved tensor have backwards of their own, without retain_graph."""
    f = compiled(losses_of_two)
    x, w = leaf(4).detach().abs().requires_grad_(), leaf(4)
    a, b = f(x, w)
    a.sum().backward()
    b.sum().backward()
    gx, gw = torch.autograd.grad(sum(t.sum() for t in losses_of_two(x, w)), (x, w))
    torch.testing.assert_close(x.grad, gx)
    torch.testing.assert_close(w.grad, gw)
    with pytest.raises(RuntimeError, match="second time"):
        a.sum().backward()


def test_partial_backward_is_in_the_cache(tmp_path: Any) -> None:
    for _ in range(2):
        fast = flashover.compile(losses_of_two, fullgraph=True, options={"cache_dir": str(tmp_path)})
        x, w = torch.zeros(4, requires_grad=True), torch.ones(4, requires_grad=True)
        fast(x, w)[1].sum().backward()
        assert torch.equal(x.grad, torch.ones(4))
        flashover.reset()


def test_forward_mode_tangents_pass_by() -> None:
    f = lambda x: (x * 2).sin()  # noqa: E731
    fast = flashover.compile(f)
    x = torch.randn(3)
    fast(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones(3))
        with pytest.warns(flashover.exc.EagerWarning, match="forward-mode"):
            got = torch.autograd.forward_ad.unpack_dual(fast(dual)).tangent
        torch.testing.assert_close(got, torch.autograd.forward_ad.unpack_dual(f(dual)).tangent)


def test_results_that_alias() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x * y
        return z, z[1:], z.t(), x[0], x.view(-1).detach(), z.detach()

    x, y = leaf(3, 4), leaf(3, 4)
    agree(f, x, y)
    z, part, turned, row, flat, bare = compiled(f)(x, y)
    assert part.data_ptr() == z[1:].data_ptr() and turned.data_ptr() == z.data_ptr() == bare.data_ptr()
    assert row.data_ptr() == x.data_ptr() and flat.data_ptr() == x.data_ptr() and not flat.requires_grad
    # A result is written in place by the caller: autograd knows that they are views of each other.
    part.mul_(3)
    z.sum().backward()
    expected = y.detach().clone()
    expected[1:] *= 3
    torch.testing.assert_close(x.grad, expected)


PARTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "chunks": lambda x: (x * 2).chunk(2),
    "rows": lambda x: (x * 2).unbind(0),
    "overlapping": lambda x: (lambda y: (y[:2], y[1:]))(x * 2),
    "some_turned": lambda x: (lambda y: (y[0].view(2, 2).t(), y[1], y[2].detach()))(x * 2),
    "of_detached": lambda x: (lambda y: (y.detach()[1:], y[1:]))(x * 2),
    "integers_too": lambda x: (x * 2, *x.long().chunk(2)),
    "of_input": lambda x: x.split(2),
    "of_detached_input": lambda x: (x.detach(), x.detach()[1:], x * 2),
}


@pytest.mark.parametrize("name", PARTS)
def test_results_that_are_parts_of_one_memory(name: str) -> None:
    f = PARTS[name]
    agree(f, leaf(3, 4))
    x = leaf(3, 4)
    got, eager = compiled(f)(x), f(x)
    for i in range(len(got)):
        for j in range(len(got)):
            assert got[i].data_ptr() - got[j].data_ptr() == eager[i].data_ptr() - eager[j].data_ptr() or (
                got[i].untyped_storage().data_ptr() != got[j].untyped_storage().data_ptr()
            ) == (eager[i].untyped_storage().data_ptr() != eager[j].untyped_storage().data_ptr())


def test_only_detached_results() -> None:
    """No gradient is computed, and none is left."""
    x = leaf(4)
    for t in compiled(lambda x: (x.detach(), x.detach()[1:]))(x):
        assert not t.requires_grad and t.data_ptr() in (x.data_ptr(), x.data_ptr() + 4)


def test_integer_and_non_differentiable_results() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.exp(), x.argmax(1), x > 0, x.detach().sum(), x.max(1).indices

    agree(f, leaf(3, 4))


def test_grads_do_not_share_memory() -> None:
    a, b = leaf(3), leaf(3)
    compiled(lambda a, b: (a + b) * 1)(a, b).sum().backward()
    assert a.grad.data_ptr() != b.grad.data_ptr()
    a, b = leaf(3), leaf(3)
    compiled(lambda a, b: a + b)(a, b).sum().backward()
    assert a.grad.data_ptr() != b.grad.data_ptr()


def test_strides_of_what_is_written_into_an_empty_tensor() -> None:
    """Those of the argument, also where a dim of size one leaves a choice."""
    x = torch.empty_strided((8, 1, 3, 17), (51, 1, 17, 1)).normal_().requires_grad_()
    for f in (F.relu6, F.hardtanh, torch.nan_to_num, F.relu):
        assert compiled(f)(x).stride() == f(x).stride(), f


def test_gradient_that_is_zero_whatever_comes() -> None:
    """It is there, as in eager, when the results that others come from are not used."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * w
        return y.exp(), y.round()

    x, w = leaf(3), leaf(3)
    compiled(f)(x, w)[1].sum().backward()
    assert torch.equal(x.grad, torch.zeros(3)) and torch.equal(w.grad, torch.zeros(3))


def test_a_part_of_a_product_that_is_handed_out_and_kept() -> None:
    """As a result it lies as in eager, with gaps; what the backward keeps is dense: one value, two outputs."""
    torch.manual_seed(0)
    linear, norm = torch.nn.Linear(32, 64), torch.nn.LayerNorm(65)
    parameters = [*linear.parameters(), *norm.parameters()]

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = linear(x).chunk(2, 1)[0]
        return half, norm(F.pad(half, (1, 0, 2, 1)))

    x = torch.randn(2, 9, 32)
    got, want = flashover.compile(program)(x), program(x)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    grads = [torch.autograd.grad(sum(t.square().sum() for t in r), parameters) for r in (got, want)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
