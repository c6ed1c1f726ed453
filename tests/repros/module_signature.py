"""inspect.signature of a compiled module is that of the module (captum asks for it), of a compiled function that of the
function."""

import inspect

import torch
from torch import nn

import flashover


class OwnCall(nn.Module):
    def __call__(self, x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
        return x * scale


for m in (nn.Sequential(nn.Linear(3, 3)), OwnCall()):
    c = flashover.compile(m)
    assert inspect.signature(c) == inspect.signature(m)
    assert inspect.signature(c.forward) == inspect.signature(m.forward)
    assert inspect.signature(type(c)) == inspect.signature(type(m))
assert str(inspect.signature(flashover.compile(lambda x, y=1: x))) == "(x, y=1)"
