"""Gradients of gradients of a compiled call (create_graph=True from outside): its forward is computed again."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flashover

torch.manual_seed(0)


def penalty(call: Callable[..., Any], m: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    y = call(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    ((g.flatten(1).norm(dim=1) - 1).square().mean() + y.mean()).backward()
    return [x.grad, *(p.grad for p in m.parameters() if p.grad is not None)]


def of_parameters(call: Callable[..., Any], m: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """What nothing else keeps alive is the input here."""
    gradients = torch.autograd.grad(call(x * 1.0).square().mean(), list(m.parameters()), create_graph=True)
    sum(g.square().sum() for g in gradients).backward()
    return [p.grad for p in m.parameters()]


def third(call: Callable[..., Any], m: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.square().sum(), x, create_graph=True)
    h.square().sum().backward()
    return [x.grad]


def sizes(call: Callable[..., Any], m: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    return [penalty(call, m, torch.randn(n, 8, generator=torch.Generator().manual_seed(n)))[0] for n in (4, 5, 6, 7)]


def hessian(call: Callable[..., Any], m: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.autograd.functional.hessian(lambda x: call(x).sum(), x)]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Values of another width: the fused kernel, whose backward has no derivative, takes none (torch 2.14 has it
        # take tensors of three dimensions).
        q, k, v = self.qkv(x).split([8, 8, 4], -1)
        return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


class Energy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        i, j = torch.triu_indices(len(x), len(x), 1)
        d = (x[i] - x[j]).square().sum(-1, keepdim=True).add(1e-3).sqrt()
        h = F.silu(self.a(torch.exp(-((d - torch.linspace(0, 3, 4)) ** 2))))
        return self.b(torch.zeros(len(x), 8).index_add(0, i, h).index_add(0, j, h).tanh())


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x).tanh()
        print(end="")
        return self.b(y * y)


class Parts(nn.Module):
    """Results that are parts of one memory, and that memory."""

    def __init__(self, cut: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.a, self.cut = nn.Linear(8, 16), cut

    def forward(self, x: torch.Tensor) -> Any:
        return self.cut(self.a(x).tanh())


def of_parts(call: Callable[..., Any], m: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    parts = call(x)
    loss = sum((p * (i + 1)).square().mean() for i, p in enumerate(parts))
    (g,) = torch.autograd.grad(loss, x, create_graph=True)
    (h,) = torch.autograd.grad(parts[1].exp().mean(), x, create_graph=True)  # of one part alone
    (g.square().sum() + h.square().sum()).backward()
    return [x.grad, *(p.grad for p in m.parameters())]


def dense(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), *between, nn.SiLU(), nn.Linear(16, 1))


PROGRAMS: dict[str, tuple[nn.Module, Callable[..., Any]]] = {
    "penalty": (dense(nn.Tanh()), penalty),
    "images": (nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2), nn.LeakyReLU(0.2), nn.Flatten()), penalty),
    "layer norm": (dense(nn.LayerNorm(16)), penalty),
    "batch norm": (dense(nn.BatchNorm1d(16)), penalty),
    "gradients of noise": (
        nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.LeakyReLU(0.2)),
        penalty,
    ),
    "attention": (Attention(), penalty),
    "forces": (Energy(), penalty),
    "graph break": (Broken(), penalty),
    "parameters": (dense(), of_parameters),
    "third": (dense(nn.Tanh()), third),
    "sizes": (dense(nn.Tanh()), sizes),
    "hessian": (dense(nn.Tanh()), hessian),
    "chunks": (Parts(lambda y: y.chunk(2, -1)), of_parts),
    "parts that overlap": (Parts(lambda y: (y[:, :12], y[:, 4:])), of_parts),
    "memory and a part": (Parts(lambda y: (y, y[:, ::3])), of_parts),
    "views": (Parts(lambda y: (y.t(), y.flatten(), y * 2)), of_parts),
}


def test_under_autocast() -> None:
    m, x = dense(nn.LayerNorm(16)), torch.randn(4, 8, requires_grad=True)
    found = []
    for call in (flashover.compile(m), m):
        with torch.autocast("cpu", torch.bfloat16):
            y = call(x)
        (g,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), [x, *list(m.parameters())[:-1]]))
    for ours, eagers in zip(*found, strict=True):
        torch.testing.assert_close(ours, eagers, rtol=5e-2, atol=5e-2 * eagers.abs().max().item())


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"backend": "eager"}], ids=str)
def test_as_eager(name: str, options: dict[str, Any]) -> None:
    module, use = PROGRAMS[name]
    x = torch.randn(4, 8)
    if name == "forces":
        x = x[:, :3]
    mine, eagers = copy.deepcopy(module), copy.deepcopy(module)
    torch.testing.assert_close(use(flashover.compile(mine, **options), mine, x), use(eagers, eagers, x))
    torch.testing.assert_close(dict(mine.named_buffers()), dict(eagers.named_buffers()))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 3 * ctx.saved_tensors[0] ** 2


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return -g


def hooked(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y.square()


def hidden(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    with torch.no_grad():
        factor = y.sigmoid()
    return y * factor


REFUSED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "detach": (lambda x: (y := x * 2) * y.detach(), "hidden from autograd"),
    "data": (lambda x: (y := x * 2) * y.data, "hidden from autograd"),
    "no_grad": (hidden, "hidden from autograd"),
    "Function": (lambda x: Cube.apply(x * 2), "hidden from autograd"),
    "identity with another gradient": (lambda x: Reversed.apply(x * 2).square(), "hidden from autograd"),
    "hook": (hooked, "hidden from autograd"),
    "dropout": (lambda x: F.dropout(x * 2, 0.5).square(), "draws random numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("value", [0.0, 1.5])
def test_what_cannot_be_computed_again_is_an_error(name: str, value: float) -> None:
    """At zero the first gradients of many agree by chance."""
    program, why = REFUSED[name]
    x = torch.full((3,), value, requires_grad=True)
    y = flashover.compile(program, fullgraph=True)(x).sum()
    with pytest.raises(RuntimeError, match=f"create_graph=True.*{why}"):
        torch.autograd.grad(y, x, create_graph=True)
    torch.autograd.grad(y, x)  # the gradient alone is there


def test_an_input_that_the_call_wrote() -> None:
    count, x = torch.ones(()), torch.ones(3, requires_grad=True)

    def counted(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return (x * count).square()

    y = flashover.compile(counted)(x).sum()
    with pytest.raises(RuntimeError, match=r"create_graph=True.*writes an input"):
        torch.autograd.grad(y, x, create_graph=True)


def test_an_input_that_changed_since() -> None:
    x, w = torch.ones(3, requires_grad=True), torch.ones(3)
    y = flashover.compile(lambda x, w: (x * w).square())(x, w).sum()
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x, create_graph=True)


def test_a_parameter_of_other_memory() -> None:
    x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    y = flashover.compile(lambda x, w: (x * w).square())(x, w).sum()
    w.data = torch.ones(3)
    with pytest.raises(RuntimeError, match="memory that it had then"):
        torch.autograd.grad(y, x, create_graph=True)


def shifted(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return (x + shift).sin()


def second(fast: Callable[..., torch.Tensor], x: torch.Tensor, shift: Callable[[], torch.Tensor]) -> torch.Tensor:
    (first,) = torch.autograd.grad(fast(x, shift()).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0]


@pytest.mark.parametrize("elements", [3, 100_000])
def test_an_input_that_nothing_else_keeps(elements: int) -> None:
    """A large one in the first calls, and once gradients of gradients were asked for."""
    x = torch.linspace(-1, 1, elements, requires_grad=True)
    fast = flashover.compile(shifted, fullgraph=True)
    for _ in range(12):
        torch.testing.assert_close(second(fast, x, lambda: torch.ones(elements)), -(x + 1).sin())


def test_a_large_input_is_not_kept_for_ever_by_what_nobody_asked_for() -> None:
    x = torch.linspace(-1, 1, 100_000, requires_grad=True)
    fast = flashover.compile(shifted, fullgraph=True)
    for _ in range(12):
        shift = torch.ones(100_000)
        y, alive = fast(x, shift).sum(), weakref.ref(shift)
        del shift
    assert alive() is None
    with pytest.raises(RuntimeError, match=r"create_graph=True.*nothing keeps"):
        torch.autograd.grad(y, x, create_graph=True)


@pytest.mark.parametrize("retain", [False, True])
def test_a_kept_input_goes_with_the_backward(retain: bool) -> None:
    x, shift = torch.ones(3, requires_grad=True), torch.ones(3)
    y, alive = flashover.compile(shifted, fullgraph=True)(x, shift).sum(), weakref.ref(shift)
    del shift
    y.backward(retain_graph=retain)
    assert (alive() is not None) == retain


def test_gradients_of_which_rounding_is_all_that_is_left() -> None:
    """A norm over equal rows: its variance is rounding, and so is what passes it."""
    torch.manual_seed(3)
    layers = [
        torch.nn.Linear(24, 40),
        torch.nn.BatchNorm1d(40),
        torch.nn.ReLU(),
        torch.nn.Linear(40, 40),
        torch.nn.BatchNorm1d(40),
    ]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(40, 4))
    rows = torch.randn(1, 24).expand(64, 24).contiguous()
    y = flashover.compile(model, fullgraph=True)(rows)
    loss = F.cross_entropy(y, torch.arange(64) % 4)
    first = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
    wanted = torch.autograd.grad(F.cross_entropy(model(rows), torch.arange(64) % 4), [*model.parameters()])
    torch.testing.assert_close(first[-1], wanted[-1], rtol=1e-2, atol=1e-3)
    assert all(g.requires_grad for g in first)
