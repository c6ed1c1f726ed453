"""An operator of one's own in a compiled graph: what it returns is said by register_fake, its gradient by
register_autograd."""

from __future__ import annotations

from typing import Any

import torch

import flashover


@torch.library.custom_op("examples::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() ** 3)  # code that no compiler looks into


@cube.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def keep(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    return 3 * x * x * grad


cube.register_autograd(backward, setup_context=keep)


@flashover.compile(fullgraph=True)
def f(x: torch.Tensor) -> torch.Tensor:
    return (cube(x.sin()) + 1).sum()


x = torch.randn(1000, requires_grad=True)
f(x).backward()
assert x.grad is not None
torch.testing.assert_close(x.grad, 3 * x.detach().sin() ** 2 * x.detach().cos())
print(flashover.live(f).stats())
