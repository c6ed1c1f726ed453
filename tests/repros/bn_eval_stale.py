"""Batch-norm statistics that a compiled training forward wrote are those that the compiled eval forward normalises
with, however often the two take turns, whether or not anything else changed in between."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import nn

import flashover

ROUNDS = 4
Mode = Callable[[], AbstractContextManager[None]]


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))


def probe() -> nn.Module:
    """A trained head on a frozen backbone, which stays in train mode."""
    backbone = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).requires_grad_(False)
    return nn.Sequential(backbone, nn.Linear(8, 2))


def check(
    make: Callable[[], nn.Module],
    x: torch.Tensor,
    train_mode: Mode,
    eval_mode: Mode = torch.no_grad,
    steps: bool = False,
) -> None:
    """Trains and evaluates in turn, compiled beside eager."""
    torch.manual_seed(0)
    eager = make()
    model = copy.deepcopy(eager)
    compiled = flashover.compile(model)
    optimizers = [
        torch.optim.SGD([p for p in m.parameters() if p.requires_grad], 0.05) for m in (eager, model) if steps
    ]
    for number in range(ROUNDS):
        eager.train()
        model.train()
        for i, call in enumerate((eager, compiled)):
            with train_mode():
                y = call(x)
            if steps:
                optimizers[i].zero_grad()
                y.square().mean().backward()
                optimizers[i].step()
        eager.eval()
        model.eval()
        with eval_mode():
            error = (compiled(x) - eager(x)).abs().max().item()
        assert error < 1e-4, f"round {number}: off by {error}"
    flashover.reset()


torch.manual_seed(1)
rows, images = torch.randn(6, 8) + 1, torch.randn(4, 3, 8, 8) + 1
check(convolution, images, torch.no_grad)
check(linear, rows, torch.no_grad)
check(probe, images, torch.enable_grad, steps=True)
check(convolution, images, torch.enable_grad)
check(convolution, images, torch.enable_grad, torch.inference_mode)
check(lambda: nn.BatchNorm1d(8), rows, torch.enable_grad)
check(convolution, images, torch.enable_grad, steps=True)
