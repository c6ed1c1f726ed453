"""Results that follow from each other: hooks, retain_grad and autograd.grad see the gradient of each as in eager."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import flashover


class Features(nn.Module):
    """Gives its features beside what it makes of them, as for Grad-CAM."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        a = self.first(x).relu()
        b = self.second(a).relu()
        return a, b, self.last(b.mean((2, 3)) + a.mean((2, 3)))


def of_parameters(m: Any) -> list[Any]:
    found = [p.grad for p in m.parameters()]
    m.zero_grad()
    return found


def retained(m: Any, x: torch.Tensor) -> list[Any]:
    a, b, y = m(x)
    b.retain_grad()
    a.retain_grad()
    y[:, 1].sum().backward()
    return [a.grad, b.grad, *of_parameters(m)]


def hooked(m: Any, x: torch.Tensor) -> list[Any]:
    a, b, y = m(x)
    seen: list[torch.Tensor] = []
    b.register_hook(lambda g: seen.append(g.clone()))
    a.register_hook(lambda g: g * 2)
    (y.sum() + a.square().sum()).backward()
    return [*seen, *of_parameters(m)]


def asked_for(m: Any, x: torch.Tensor) -> list[Any]:
    a, b, y = m(x)
    found = torch.autograd.grad(y.sum(), [a, b, *m.parameters()], retain_graph=True)
    return [*found, *torch.autograd.grad(b.sum(), a, retain_graph=True), *torch.autograd.grad(y.sum() + b.sum(), b)]


def nobody_looks(m: Any, x: torch.Tensor) -> list[Any]:
    a, b, y = m(x)
    (a.sum() + b.square().sum() + y.sum()).backward()
    return of_parameters(m)


def one_after_the_other(m: Any, x: torch.Tensor) -> list[Any]:
    a, b, y = m(x)
    y.sum().backward(retain_graph=True)
    first = of_parameters(m)
    a.retain_grad()
    (y.sum() + b.sum()).backward()
    return [*first, a.grad, *of_parameters(m)]


def equal(got: list[Any], wanted: list[Any], **near: float) -> None:
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        assert (g is None) == (w is None)
        if w is not None:
            torch.testing.assert_close(g, w, **near)


@pytest.mark.parametrize("ask", [retained, hooked, asked_for, nobody_looks, one_after_the_other])
def test_as_eager(ask: Callable[[Any, torch.Tensor], list[Any]]) -> None:
    torch.manual_seed(0)
    m = Features().double()
    fast = flashover.compile(m, fullgraph=True)
    for n in (8, 8, 9, 10):  # the last two are one version
        x = torch.randn(2, 3, n, n, dtype=torch.double)
        equal(ask(fast, x), ask(m, x))


def test_of_hidden_states_and_of_functions_of_an_input() -> None:
    def f(x: torch.Tensor, n: int) -> list[torch.Tensor]:
        states = [x.sin()]
        for _ in range(n):
            states.append((states[-1] * x).cos())
        return states

    def run(g: Callable[..., Any]) -> list[Any]:
        x = torch.linspace(0, 1, 5, dtype=torch.double, requires_grad=True)
        states = g(x, 6)
        of_all = torch.autograd.grad(states[-1].sum(), [*states[:-1], x], retain_graph=True)
        return [*of_all, *torch.autograd.grad(states[3].sum(), states[1])]

    equal(run(flashover.compile(f, fullgraph=True)), run(f))


def test_results_in_any_order() -> None:
    """Autograd's nodes are made from the inputs on, whatever comes first in what is returned."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x.sin()
        b = a.cos() * x
        c = a * b
        return c, a, (c + a).exp(), b

    def run(g: Callable[..., Any]) -> list[Any]:
        x = torch.linspace(0, 1, 5, dtype=torch.double, requires_grad=True)
        c, a, d, b = g(x)
        return list(torch.autograd.grad(d.sum() + b.sum(), [a, b, c, x]))

    equal(run(flashover.compile(f, fullgraph=True)), run(f))


def test_results_that_do_not_follow_are_not_reached() -> None:
    f = flashover.compile(lambda x: (x.sin(), x.cos(), x.sin().detach() * x), fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    for other in f(x)[1:]:
        with pytest.raises(RuntimeError, match="appears to not have been used"):
            torch.autograd.grad(other.sum(), f(x)[0])
    a, b, _ = f(x)
    assert torch.autograd.grad(b.sum(), a, allow_unused=True) == (None,)


def chunks(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = x.tanh().chunk(2, -1)
    return a, b, (a * b.exp()).sum()


def chunk_of_one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same elements under two names, each with a gradient of its own."""
    h = x.tanh()
    a = h[:, :1]
    (b,) = a.chunk(2, -1)
    return h, a, b, (a * b.exp() + h.exp()).sum()


def whole_behind_its_view(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = x.tanh()
    return h.flatten(), h, (h * h.exp()).sum()


def views_of_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = x.tanh()
    a = h.t()
    b = a[1]
    return b, (b.exp().sum() * a).sum(), a, h.view_as(h)


def written(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = x.tanh() * 2
    a = h.flatten()
    h.mul_(0.5)
    return h, a, (a * a.exp()).sum()


def expanded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = x.tanh()
    a = h.expand(2, *h.shape)
    return h, a, (a * a.flatten().exp().sum()).sum()


def expanded_alone(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = x.tanh()
    a = h.exp().expand(2, *h.shape)
    return h, a, (a * a.flatten().exp().sum()).sum()


def part_of_expanded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a = x.tanh().expand(2, *x.shape)
    return a, a[0], (a * a[0].exp()).sum()


VIEWS = [
    chunks,
    chunk_of_one,
    whole_behind_its_view,
    views_of_views,
    written,
    expanded,
    expanded_alone,
    part_of_expanded,
]


@pytest.mark.parametrize("f", VIEWS)
@pytest.mark.parametrize("how", ["asked", "retained", "hooked"])
def test_of_views_of_results(f: Callable[..., Any], how: str) -> None:
    def run(g: Callable[..., Any]) -> list[Any]:
        x = torch.linspace(-1, 1, 12, dtype=torch.double).reshape(3, 4).requires_grad_()
        results = g(x)
        total = sum((r * (i + 1)).sum() for i, r in enumerate(results))
        if how == "asked":
            loss = next(r for r in results if r.dim() == 0)
            of_all = torch.autograd.grad(loss, [*results, x], retain_graph=True, allow_unused=True)
            return [*of_all, *torch.autograd.grad(total, [*results, x])]
        if how == "retained":
            for r in results:
                r.retain_grad()
            total.backward()
            return [*(r.grad for r in results), x.grad]
        seen: dict[int, torch.Tensor] = {}
        for i, r in enumerate(results):
            r.register_hook(lambda g, i=i: (seen.setdefault(i, g.clone()), g * 2)[1])
        total.backward()
        return [*(seen.get(i) for i in range(len(results))), x.grad]

    fast = flashover.compile(f)
    for _ in range(2):
        equal(run(fast), run(f))


def test_of_chunks_of_a_module_in_training() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            mean, scale = self.first(x).chunk(2, -1)
            return mean, scale, self.last(mean * scale.exp())

    torch.manual_seed(0)
    m = Split().double()
    fast = flashover.compile(m, fullgraph=True)
    for n in (3, 3, 4, 5):
        x = torch.randn(n, 6, dtype=torch.double)
        equal(asked_for_chunks(fast, x), asked_for_chunks(m, x))


def asked_for_chunks(m: Any, x: torch.Tensor) -> list[Any]:
    mean, scale, y = m(x)
    found = torch.autograd.grad(y.sum(), [mean, scale], retain_graph=True)
    (y.square().sum() + scale.sum()).backward()
    return [*found, *of_parameters(m)]


def test_where_the_forward_cannot_be_computed_again() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.dropout(x, 0.5, True)
        return h, h * x

    fast = flashover.compile(f, fullgraph=True)
    x = torch.ones(8, requires_grad=True)
    h, y = fast(x)
    with pytest.raises(RuntimeError, match="random numbers"):
        torch.autograd.grad(y.sum(), h)
    h, y = fast(x)
    h.retain_grad()
    with pytest.raises(RuntimeError, match="a hook, retain_grad"):
        y.sum().backward()
    h, y = fast(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)  # nobody asks for h's
    torch.testing.assert_close(gradient, 2 * h)
    h, y = fast(x)
    seen: list[torch.Tensor] = []
    h.register_hook(seen.append)  # some hooks only want to run: a warning, and they do
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * h.detach())


def test_create_graph_is_refused_where_results_are_asked_for() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x.sin()
        return h, h**2

    h, y = flashover.compile(f, fullgraph=True)(torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="create_graph=True is not taken"):
        torch.autograd.grad(y.sum(), h, create_graph=True)


def test_hooks_of_inputs_are_called_once() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x.sin()
        return h, h * x

    def run(g: Callable[..., Any], dtype: torch.dtype, create: bool) -> list[Any]:
        x = torch.ones(3, dtype=dtype, requires_grad=True)
        calls: list[int] = []
        x.register_hook(lambda g: (calls.append(1), g * 2)[1])
        h, y = g(x)
        if not create:
            h.retain_grad()
        y.sum().backward(create_graph=create)
        return [x.grad.detach(), torch.tensor(len(calls)), None if create else h.grad]

    fast = flashover.compile(f, fullgraph=True)
    for dtype in (torch.double, torch.bfloat16):
        for create in (False, True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of create_graph and cycles
                equal(run(fast, dtype, create), run(f, dtype, create), rtol=1e-2, atol=1e-2)


def test_what_a_backward_reads_of_results_is_let_go() -> None:
    class Big(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = (self.w * x).exp()  # the backward reads the result
            return h, h.exp()

    fast = flashover.compile(Big(), fullgraph=True)
    gc.collect()
    gc.disable()
    try:
        results = fast(torch.ones(4))
        dead = [weakref.ref(r) for r in results]
        del results
        assert all(r() is None for r in dead)
    finally:
        gc.enable()
