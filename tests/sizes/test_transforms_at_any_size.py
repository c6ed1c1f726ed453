"""torch.func's transforms, and gradients of given gradients, over sizes that change: one compile serves them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import differ
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

import flashover


def pulled_back(x: Tensor, y: Tensor) -> Any:
    out, pull = vjp(lambda t: t.tanh() * 2, x)
    return out, pull(y)


def of_given_gradients(x: Tensor, y: Tensor) -> Tensor:
    t = x.detach().requires_grad_()
    with torch.enable_grad():
        out = t.sin() * t
    return torch.autograd.grad(out, t, y)[0]


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "vmap": lambda x, y: vmap(lambda t: t.sin() * t.sum())(x),
    "vmap of two": lambda x, y: vmap(lambda t, u: t @ u)(x, y),
    "vmap of columns": lambda x, y: vmap(lambda t, u: (t * u).cumsum(0), in_dims=1, out_dims=1)(x, y),
    "vmap in vmap": lambda x, y: vmap(vmap(lambda t: t * 2))(x),
    "vmap that writes": lambda x, y: vmap(lambda t: t.clone().add_(1))(x),
    "gradients of examples": lambda x, y: vmap(grad(lambda t, u: (t.sin() * u).sum()))(x, y),
    "vjp": pulled_back,
    "jvp": lambda x, y: jvp(lambda t: t.sin() * t.cumsum(0), (x,), (y,)),
    "jacrev": lambda x, y: jacrev(lambda t: t.sin().sum(1))(x),
    "jacfwd": lambda x, y: jacfwd(lambda t: t.sin().sum(1))(x),
    "given gradients": of_given_gradients,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_for_all_sizes(name: str) -> None:
    f = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for n in (5, 8, 3, 12):
        x, y = torch.randn(n, 6), torch.randn(n, 6)
        what = differ(compiled(x, y), f(x, y))
        assert not what, (n, what)
    assert flashover.compile_stats()["graphs"] == before + 2
    for n in (1, 0):  # of their own or not, but right
        x, y = torch.randn(n, 6), torch.randn(n, 6)
        if n > 0 or ("vmap" not in name and "examples" not in name):
            what = differ(compiled(x, y), f(x, y))
            assert not what, (n, what)
