"""Attributes by names that are made in the call: each is itself, whatever lay in its place before."""

from __future__ import annotations

import torch

import flashover


def test_reflected_operators_of_sizes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n, y = x.shape[0], x
        for _ in range(20):
            y = (n + (n - y)) / 8
            y = n * y
            y = n / (y + 9)
        return y

    compiled = flashover.compile(f, fullgraph=True, dynamic=True)
    for n in (5, 3):
        x = torch.rand(n)
        torch.testing.assert_close(compiled(x), f(x))


def test_methods() -> None:
    class Steps(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i in range(40):
                x = getattr(self, "step_" + chr(65 + i))(x)
            return x

    for i in range(40):
        setattr(Steps, "step_" + chr(65 + i), lambda self, x, k=i: x * 0.5 + k)
    x = torch.ones(3)
    torch.testing.assert_close(flashover.compile(Steps(), fullgraph=True)(x), Steps()(x))


def test_methods_of_tensors() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            for name in ("add", "mul", "sub", "div"):
                x = getattr(x, name[:1] + name[1:])(1.5)
                if hasattr(x, "no" + name):
                    x = x + 100
        return x

    x = torch.ones(3)
    torch.testing.assert_close(flashover.compile(f, fullgraph=True)(x), f(x))
