"""A Python float that changes from step to step and is kept on the ctx of an autograd.Function (gradient reversal with
a growing lambda) becomes an input after its first change; gradients follow it."""

import os

os.environ["FLASHOVER_REMEMBER_SIZES"] = "0"  # what changed in an earlier process is a symbol at once

import torch
from torch import nn

import flashover


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lam):
        ctx.lam = lam
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.lam * g, None


class Scaled(torch.autograd.Function):
    """The newer form; the number is computed with in both directions and handed on in a tuple."""

    @staticmethod
    def forward(x, scales, bias=0.5):
        return x * scales[0] + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.scales, _ = inputs

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scales[0] / (1 + ctx.scales[1]), None, None


linear = nn.Linear(8, 4)


def reversal(x: torch.Tensor, lam: float) -> torch.Tensor:
    return Reverse.apply(linear(x), lam).square().mean()


def scaled(x: torch.Tensor, lam: float) -> torch.Tensor:
    return Scaled.apply(linear(x), (lam, lam * 2)).square().mean()


for f in (reversal, scaled):
    c = flashover.compile(f)
    before = flashover.compile_stats()
    for i in range(14):
        x, lam = torch.randn(3, 8), 0.1 * i + 0.05
        results = []
        for call in (c, f):
            linear.zero_grad()
            loss = call(x, lam)
            loss.backward()
            results.append((loss.detach(), linear.weight.grad.clone(), linear.bias.grad.clone()))
        for a, b in zip(*results, strict=True):
            assert torch.allclose(a, b, atol=1e-6), (f.__name__, i)
    after = flashover.compile_stats()
    assert after["frames"] - before["frames"] == 2, f.__name__
    assert after["recompiles"] - before["recompiles"] == 1
    assert after["graph_breaks"] == before["graph_breaks"]
