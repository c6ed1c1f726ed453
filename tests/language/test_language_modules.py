"""Modules of every kind, compiled whole: hooks, parametrizations, attributes; functional calls."""
# ruff: noqa: E501 - the old ways of writing things are under test, too

from __future__ import annotations

import collections
import functools
from typing import Any

import pytest
import torch
from same_objects import same
from torch import nn
from torch.nn.utils import parametrize, prune

import flashover

Tensor = torch.Tensor
INPUTS = [torch.arange(12.0).reshape(3, 4), torch.linspace(-1, 1, 10).reshape(2, 5)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.by_name = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
        self.extra = nn.ParameterList([nn.Parameter(torch.ones(4) * i) for i in range(2)])
        self.named = nn.ParameterDict({"w": nn.Parameter(torch.full((4,), 0.5))})
        self.register_buffer("steps", torch.zeros(4), persistent=False)
        self.register_parameter("nothing", None)
        self.activations: dict[str, Tensor] = {}
        self.calls = 0

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        for i, layer in enumerate(self.layers[:2]):
            x = layer(x) * scale + self.extra[i]
        for name, f in self.by_name.items():
            x = f(x) if name == "a" else x + f(x)
        if self.nothing is not None:
            x = x * 0
        for p in self.layers[-1].parameters():
            x = x + p.sum()
        return x * self.named["w"] + self.steps + len(self.layers) + sum(1 for _ in self.children())


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LazyLinear(4)
        self.second = nn.LazyBatchNorm1d()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Attributes(nn.Module):
    """Overrides __getattr__, keeps plain containers of modules, calls methods of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.plain = [nn.Linear(4, 4)]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x) + self.plain[0](x) + self.in_features + self.weight.sum()

    def step(self, x: Tensor) -> Tensor:
        return self.get_submodule("inner")(x)


def modules() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    hooked = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    hooked.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
    hooked[0].register_forward_hook(lambda m, a, out: out * 2)
    hooked.register_forward_hook(lambda m, a, k, out: out - 1, with_kwargs=True)
    lazy = Lazy()
    lazy(torch.ones(2, 4))
    pruned = nn.Linear(4, 4)
    prune.l1_unstructured(pruned, "weight", 0.5)
    shared = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    shared[1].weight = shared[0].weight
    parametrized = nn.Linear(4, 4)
    parametrize.register_parametrization(parametrized, "weight", Symmetric())
    return {
        "block": Block(), "hooked": hooked, "lazy": lazy, "attributes": Attributes(), "weight_norm": nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        "orthogonal": nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), "spectral": nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        "pruned": pruned, "shared": shared, "parametrized": parametrized, "sequential": nn.Sequential(collections.OrderedDict(a=nn.Linear(4, 4), b=nn.Dropout())),
        "identity": nn.Sequential(nn.Identity(), nn.Flatten(0), nn.Unflatten(0, (3, 4))),
    }  # fmt: skip


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).mT


@pytest.mark.parametrize("name", modules())
@pytest.mark.timeout(60)
def test_module(name: str) -> None:
    module = modules()[name].eval()
    fast = flashover.compile(module, fullgraph=True)
    with torch.no_grad():
        for x in (INPUTS[0], INPUTS[0] * 2):
            same(fast(x), module(x))
        for p in module.parameters():
            p.add_(1)
        same(fast(INPUTS[0]), module(INPUTS[0]))


def test_hooks_that_come_and_go() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    fast = flashover.compile(module, fullgraph=True)
    x = INPUTS[0]
    with torch.no_grad():
        same(fast(x), module(x))
        handle = module[1].register_forward_hook(lambda m, a, out: out + 100)
        same(fast(x), module(x))
        handle.remove()
        same(fast(x), module(x))
        handle = nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 3)
        try:
            same(fast(x), module(x))
        finally:
            handle.remove()
        same(fast(x), module(x))
        module.append(nn.Tanh())
        same(fast(x), module(x))
        module[0] = nn.Linear(4, 4, bias=False)
        same(fast(x), module(x))


def test_functional_call() -> None:
    module = nn.Linear(4, 4)

    @functools.partial(flashover.compile, fullgraph=True)
    def f(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(module, weights, (x,))

    with torch.no_grad():
        for k in (1.0, 2.0):
            weights = {n: p * k for n, p in module.named_parameters()}
            same(f(weights, INPUTS[0]), torch.func.functional_call(module, weights, (INPUTS[0],)))
