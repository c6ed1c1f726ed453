"""Gradients of gradients of a compiled call on the GPU, in the autograd engine's own thread."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import flashover

pytestmark = pytest.mark.gpu


def modules() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "dense": nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.SiLU(), nn.Linear(128, 1)),
        "images": nn.Sequential(
            nn.Unflatten(1, (4, 4, 4)), nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.LeakyReLU(0.2), nn.Flatten()
        ),
    }


@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", ["dense", "images"])
def test_penalty(name: str, autocast: bool, options: dict[str, str]) -> None:
    found = []
    for compiled in (False, True):
        m = copy.deepcopy(modules()[name]).cuda()
        call = flashover.compile(m, **options) if compiled else m
        for step in range(4):
            x = torch.randn(16, 64, generator=torch.Generator().manual_seed(step)).cuda().requires_grad_()
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                y = call(x)
            (g,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
            ((g.norm(dim=1) - 1).square().mean() + y.float().mean()).backward()
            found.append((compiled, x.grad))
        found += [(compiled, p.grad) for p in m.parameters()]
    # Of a bias before a batch norm the gradient is rounding alone: they are measured by the largest.
    tolerance = 5e-2 if autocast else 1e-3
    eager, ours = ([g for of, g in found if of is which] for which in (False, True))
    largest = max(g.abs().max().item() for g in eager)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}], ids=str)
def test_gradients_of_results(options: dict[str, str]) -> None:
    """Of features that the call hands out beside what follows from them: a hook, retain_grad, autograd.grad."""

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            features = self.body(x).relu()
            return features, self.head(features.mean((2, 3)))

    torch.manual_seed(0)
    plain = Features().double().cuda()
    fast = copy.deepcopy(plain)
    found = []
    for m, call in ((plain, plain), (fast, flashover.compile(fast, **options))):
        for step in range(4):
            x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(step)).double().cuda()
            features, y = call(x)
            if step % 2:
                features.retain_grad()
                features.register_hook(lambda g: g * 2)
            y[:, 1].sum().backward(retain_graph=True)
            found += [features.grad, *torch.autograd.grad(y.sum(), features)]
        found += [p.grad for p in m.parameters()]
    half = len(found) // 2
    for a, b in zip(found[half:], found[:half], strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b)
