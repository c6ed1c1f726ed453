"""Parameters that a call makes and keeps: whole where no gradient goes through them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import flashover


class Assigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.weight = nn.Linear(3, 3), torch.linspace(-1, 1, 9).reshape(3, 3)


class OverAnAttribute(Assigned):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear.weight = nn.Parameter(self.weight)
        return self.linear(x)


class Computed(Assigned):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear.weight = nn.Parameter(self.weight * x.sum(), requires_grad=False)
        self.linear.bias = nn.Parameter(x[0].detach(), requires_grad=False)
        return self.linear(x)


class HandedOut(Assigned):
    def forward(self, x: torch.Tensor) -> tuple[nn.Parameter, torch.Tensor]:
        made = nn.Parameter(x * 2)
        made.kind = "made"
        return made, x + 1


@pytest.mark.parametrize("kind", [OverAnAttribute, Computed, HandedOut])
def test_without_gradients(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind()
    torch.manual_seed(0)
    twin = kind()
    fast = flashover.compile(twin, fullgraph=True)
    for n in (1.0, 2.0, 3.0):
        x = torch.full((2, 3), n)
        with torch.no_grad():
            got, want = fast(x), model(x)
        torch.testing.assert_close(got, want)
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(p, q) and p.requires_grad == q.requires_grad and type(q) is nn.Parameter
    if kind is OverAnAttribute:
        assert twin.linear.weight.data_ptr() == twin.weight.data_ptr()
    if kind is HandedOut:
        assert type(got[0]) is nn.Parameter and got[0].requires_grad and got[0].kind == "made"


def test_gradients_through_them_are_eagers() -> None:
    model = OverAnAttribute()
    fast = flashover.compile(model, options={"eager_warning": False})
    fast(torch.ones(2, 3)).sum().backward()
    assert torch.equal(model.linear.weight.grad, torch.full((3, 3), 2.0))
    with pytest.raises(flashover.exc.Unsupported, match="leaf"):
        flashover.compile(OverAnAttribute(), fullgraph=True)(torch.ones(2, 3))
