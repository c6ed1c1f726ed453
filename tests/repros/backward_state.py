# open: docs/limits.md
"""A hook reads the program's state when the backward runs, as in eager."""

from types import SimpleNamespace

import torch

import flashover

state = SimpleNamespace(scale=2.0)


def f(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y.register_hook(lambda g: g * state.scale)
    return y


x = torch.ones(3, requires_grad=True)
y = flashover.compile(f)(x).sum()
state.scale = 5.0
y.backward()
assert torch.equal(x.grad, torch.full((3,), 5.0))
