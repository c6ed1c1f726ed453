"""What the forward keeps for the backward: how long it lives, hooks that pack it, a second and a threaded backward."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from comparing import agree
from differentiating import compiled, leaf

import flashover

pytestmark = pytest.mark.timeout(300)


def test_retain_graph_and_second_backward() -> None:
    x = leaf(3)
    y = compiled(lambda x: x.exp().sin())(x)
    y.sum().backward(retain_graph=True)
    first = x.grad.clone()
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_two_backwards_that_share_what_was_saved() -> None:
    """A run for one result frees what only that result's gradients read."""

    def f(v: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shared = x.sin()
        return v * shared, w * shared.cos(), (v * w).exp()

    x = torch.randn(3, 2)
    for order in ((0, 1, 2), (2, 1, 0), (1, 0), (0, 2, 1)):
        v, w = leaf(3, 2), leaf(3, 2)
        results = compiled(f)(v, w, x)
        for i in order:
            got = torch.autograd.grad(results[i].sum(), (v, w), allow_unused=True)
            want = torch.autograd.grad(f(v, w, x)[i].sum(), (v, w), allow_unused=True)
            assert [g is None for g in got] == [g is None for g in want]
            for a, b in zip(got, want, strict=True):
                if a is not None:
                    torch.testing.assert_close(a, b)
        for i in order:
            with pytest.raises(RuntimeError, match="second time"):
                results[i].sum().backward()


def test_saved_tensor_hooks() -> None:
    packed: list[torch.Size] = []
    x = leaf(3)

    def pack(t: torch.Tensor) -> torch.Tensor:
        packed.append(t.shape)
        return t.double()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.float()):
        y = compiled(lambda x: x.exp().sin())(x)
    y.sum().backward()
    assert packed
    torch.testing.assert_close(x.grad, (x.exp().cos() * x.exp()).detach())


def test_saved_tensors_die_with_the_result() -> None:
    class Packed:
        def __init__(self, t: torch.Tensor) -> None:
            self.t = t

    packed: list[weakref.ref[Packed]] = []

    def pack(t: torch.Tensor) -> Packed:
        p = Packed(t)
        packed.append(weakref.ref(p))
        return p

    f = compiled(lambda x: (x @ x).sin() @ x)
    for backward in (False, True):
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda p: p.t):
            y = f(leaf(8, 8))
        assert packed and all(p() is not None for p in packed)
        if backward:
            y.sum().backward()
        else:
            del y
        gc.collect()
        assert all(p() is None for p in packed)


def test_backward_in_another_thread() -> None:
    f = compiled(lambda x: (x @ x).sin())
    xs = [leaf(8, 8) for _ in range(4)]
    ys = [f(x) for x in xs]
    threads = [threading.Thread(target=lambda y=y: y.sum().backward()) for y in ys]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for x in xs:
        e = x.detach().clone().requires_grad_()
        (e @ e).sin().sum().backward()
        torch.testing.assert_close(x.grad, e.grad)


def test_saved_tensor_hooks_inside() -> None:
    hooks = torch.autograd.graph.saved_tensors_hooks

    def narrow(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with hooks(lambda t: t.to(torch.bfloat16), lambda t: t.float()):
            y = (x @ w).sin()
        with torch.autograd.graph.save_on_cpu():
            return y.exp() * y

    x, w = leaf(3, 4), leaf(4, 4)
    agree(narrow, x, w, exact=False)
    exact = torch.autograd.grad(((x @ w).sin().exp() * (x @ w).sin()).sum(), w)[0]
    got = torch.autograd.grad(compiled(narrow)(x, w).sum(), w)[0]
    assert not torch.allclose(got, exact, rtol=1e-5)  # of what was rounded

    calls: list[int] = []

    def effects(x: torch.Tensor) -> torch.Tensor:
        def unpack(t: torch.Tensor) -> torch.Tensor:
            calls.append(len(calls))
            return t / 2

        with hooks(lambda t: t.detach() * 2, unpack):
            y = x.sin()
            str(calls)
            return y.exp()

    fast = compiled(effects, fullgraph=False)
    for _ in range(2):
        x, calls[:] = leaf(3), []
        fast(x).sum().backward()
        assert calls
        torch.testing.assert_close(x.grad, (x.sin().exp() * x.cos()).detach())


def test_a_gradient_of_a_gradient_beside_a_freed_graph_is_eagers() -> None:
    w = torch.ones(2, requires_grad=True)

    def inner_step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def loss(v: torch.Tensor) -> torch.Tensor:
            return ((v * x - 2) ** 2).sum()

        (g,) = torch.autograd.grad(loss(w), w, create_graph=True)
        outer = loss(w - 0.1 * g)
        return outer, *torch.autograd.grad(outer, w)  # which frees what `outer` would need

    x = torch.tensor([1.0, 3.0])
    assert all(map(torch.equal, flashover.compile(inner_step)(x), inner_step(x)))
