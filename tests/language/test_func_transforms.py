"""torch.func's transforms inside compiled code, nested: one graph, eager's numbers, no level left open."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import whole
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import flashover


def g(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


LAYER = torch.nn.Linear(4, 2)
PARAMETERS = dict(LAYER.named_parameters())


def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(functional_call(LAYER, parameters, (x[None],)), y[None])


PROGRAMS: dict[str, Callable[..., Any]] = {
    "grad of grad": lambda x: grad(lambda y: grad(g)(y).sum())(x),
    "vmap of grad": lambda x: vmap(grad(g))(x),
    "hessian": lambda x: hessian(g)(x[0]),
    "vmap of hessian": lambda x: vmap(hessian(g))(x),
    "jacrev of jacrev": lambda x: jacrev(jacrev(g))(x[0]),
    "jacfwd of jacfwd": lambda x: jacfwd(jacfwd(g))(x[0]),
    "jacrev of jacfwd": lambda x: jacrev(jacfwd(g))(x[0]),
    "jvp of grad": lambda x: jvp(grad(g), (x,), (x.cos(),)),
    "grad of jvp": lambda x: grad(lambda y: jvp(g, (y,), (torch.ones_like(y),))[1])(x),
    "jvp of vjp": lambda x: jvp(lambda y: vjp(g, y)[1](torch.tensor(2.0))[0], (x,), (x,)),
    "per sample": lambda x: vmap(grad(loss), in_dims=(None, 0, 0))(PARAMETERS, x, torch.tensor([0, 1, 1])),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_whole(name: str) -> None:
    f = PROGRAMS[name]
    x = torch.linspace(-1, 2, 12).reshape(3, 4)
    torch.testing.assert_close(flashover.compile(f, fullgraph=True)(x), f(x))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_break_inside_leaves_no_level_open(depth: int) -> None:
    seen: list[int] = []

    def innermost(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch._C._functorch.get_dynamic_layer_stack_depth())
        flashover.graph_break()
        return jvp(lambda y: (flashover.graph_break(), y.sin())[1], (x,), (x,))[1]

    f: Callable[..., Any] = innermost
    for _ in range(depth):
        f = vmap(f)
    compiled = flashover.compile(lambda x: f(x * 2) + 1)
    x = torch.linspace(-1, 2, 24).reshape(2, 3, 2, 2)
    wanted = f(x * 2) + 1
    for _ in range(2):
        torch.testing.assert_close(compiled(x), wanted)
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
    assert torch.rand(2).shape == (2,)
    assert set(seen) == {depth}


Tensor = torch.Tensor


def x() -> Tensor:
    return torch.arange(12.0).reshape(3, 4) * 0.1


def test_forward_mode() -> None:
    c = whole(lambda a: (torch.func.jvp(torch.sin, (a,), (a,)), torch.func.jacfwd(torch.sin)(a)))
    (value, tangent), jacobian = c(x()[0])
    torch.testing.assert_close((value, tangent), (x()[0].sin(), x()[0].cos() * x()[0]))
    torch.testing.assert_close(jacobian, torch.diag(x()[0].cos()))
    hessian = flashover.compile(lambda a: torch.func.hessian(lambda b: (b**3).sum())(a))
    for _ in range(2):
        torch.testing.assert_close(hessian(x()[0]), torch.diag(6 * x()[0]))


def test_an_ensemble_over_a_module_without_data() -> None:
    from torch.func import functional_call, stack_module_state, vmap

    models = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(3)]
    params, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def f(x: torch.Tensor) -> torch.Tensor:
        def one(p: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
            return functional_call(base, (p, b), (x,))

        return vmap(one, in_dims=(0, 0, None))(params, buffers, x)

    x = torch.randn(5, 4)
    torch.testing.assert_close(flashover.compile(f, fullgraph=True)(x), f(x))
    assert all(p.is_meta for p in base.parameters())

    def uses(x: torch.Tensor) -> Any:
        return x + 1, base[0].weight.shape, (base[0].weight * 2).shape

    assert flashover.compile(uses)(x)[1:] == uses(x)[1:]
