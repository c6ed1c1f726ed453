"""What a backward reads lies as in the forward: libraries ask for aligned rows, which a dense copy has not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import flashover

SEEN: list[tuple[int, ...]] = []


@torch.library.custom_op("saved_views::scored", mutates_args=())
def scored(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    SEEN.append(bias.stride())
    return x + bias


@scored.register_fake
def _(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("saved_views::scored_backward", mutates_args=())
def scored_backward(grad: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    SEEN.append(bias.stride())
    return grad * bias


@scored_backward.register_fake
def _(grad: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(grad)


scored.register_autograd(
    lambda ctx, grad: (scored_backward(grad, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("length", [1, 5, 15])
def test_rows_that_are_padded_and_expanded(length: int, dynamic: bool) -> None:
    def step(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = F.pad(mask.exp(), (0, 16 - mask.shape[-1]))[..., : mask.shape[-1]]
        return scored(x, rows.expand(2, 3, -1, -1)).sum()

    fast = flashover.compile(step, fullgraph=True, dynamic=dynamic)
    mask = torch.randn(2, 1, length, length)
    strides, grads = [], []
    for f in (step, fast):
        SEEN.clear()
        x = torch.ones(2, 3, length, length, requires_grad=True)
        f(x, mask).backward()
        strides.append(list(SEEN))
        grads.append(x.grad)
    assert strides[0] == strides[1] == [(16 * length, 0, 16, 1)] * 2
    torch.testing.assert_close(grads[1], grads[0])
