"""What has gradients: programs (a loss of two tensors) and modules with their input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "broadcast": lambda x, y: (x * y[0] + y.sum(1, keepdim=True)).sin().mean(),
    "slice_write": lambda x, y: _slice_write(x, y),
    "inplace_on_view": lambda x, y: _inplace_on_view(x, y),
    "detach_island": lambda x, y: (x * y.detach()).sum() + y.pow(2).sum(),
    "no_grad_island": lambda x, y: _no_grad_island(x, y),
    "double_use": lambda x, y: (x @ y.t()).relu().sum() + x.exp().sum() * y.mean(),
    "softmax_loss": lambda x, y: F.cross_entropy(x @ y.t(), torch.tensor([0, 1, 2])),
    "layer_norm": lambda x, y: F.layer_norm(x, (4,), y[0], y[1]).pow(2).sum(),
    "index": lambda x, y: (x[torch.tensor([2, 0])] * y[:2]).sum(),
    "gather_scatter": lambda x, y: (
        x.gather(1, torch.tensor([[0, 1], [1, 0], [3, 3]])).sum()
        + torch.zeros(3, 4).scatter(1, torch.zeros(3, 2, dtype=torch.long), y[:, :2]).pow(2).sum()
    ),
    "where": lambda x, y: torch.where(x > 0, x * y, y).sum(),
    "cat_stack": lambda x, y: (torch.cat([x, y], 1)[:, 2:6] * torch.stack([x, y]).sum(0)).sum(),
    "cumsum": lambda x, y: (x.cumsum(0) * y.cumprod(1)).sum() if False else (x.cumsum(0) * y).sum(),
    "max": lambda x, y: x.max(1).values.sum() + torch.maximum(x, y).sum() + y.amax(0).sum(),
    "var_norm": lambda x, y: x.var(1).sum() + torch.linalg.vector_norm(y) + y.std(),
    "sdpa": lambda x, y: (
        F.scaled_dot_product_attention(x[None, None], y[None, None], y[None, None], is_causal=True).pow(2).sum()
    ),
    "gelu_silu": lambda x, y: (F.gelu(x) * F.silu(y) + F.gelu(y, approximate="tanh")).sum(),
    "dropout": lambda x, y: (F.dropout(x, 0.5) * y).sum(),
    "custom_function": lambda x, y: _Double.apply(x, y).sum(),
    "hook": lambda x, y: _hooked(x, y),
    "checkpoint": lambda x, y: torch.utils.checkpoint.checkpoint(
        lambda a, b: (a.sin() * b).exp(), x, y, use_reentrant=False
    ).sum(),
    "pad_unfold": lambda x, y: (F.pad(x, (1, 2)).unfold(1, 3, 1).sum(-1)[:, :4] * y).sum(),
    "expand_view": lambda x, y: (
        x.expand(2, 3, 4).reshape(6, 4).t().contiguous().view(4, 2, 3).permute(1, 2, 0) * y
    ).sum(),
    "embedding": lambda x, y: (F.embedding(torch.tensor([[0, 2], [1, 1]]), x) * y[:2]).sum(),
    "double_backward": lambda x, y: torch.autograd.grad((x.pow(3) * y).sum(), x, create_graph=True)[0].pow(2).sum(),
}


def _slice_write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * 2
    z[1:, ::2] = y[1:, ::2] * y[0, 0]
    return (z * x).sum()


def _inplace_on_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z.view(-1)[::3].mul_(y[0, 0])
    z[0].relu_()
    return (z * y).sum()


def _no_grad_island(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = (x * 2).sum()
    return (x * scale * y).sum()


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x * y * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return g * y * 2, g * x * 2 + 1


def _hooked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * y
    z.register_hook(lambda g: g * 3)
    return z.exp().sum()


MODULES: dict[str, Callable[[], tuple[torch.nn.Module, torch.Tensor]]] = {
    "linear_relu": lambda: (
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)),
        torch.randn(3, 4),
    ),
    "conv_bn_pool": lambda: (
        torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.AdaptiveAvgPool2d(1),
        ),
        torch.randn(2, 3, 8, 8),
    ),
    "group_norm": lambda: (
        torch.nn.Sequential(torch.nn.Conv1d(4, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.GELU()),
        torch.randn(2, 4, 9),
    ),
    "transposed_conv": lambda: (torch.nn.ConvTranspose2d(3, 4, 3, stride=2), torch.randn(1, 3, 5, 5)),
    "gru": lambda: (torch.nn.GRU(4, 5, batch_first=True), torch.randn(2, 3, 4)),
    "lstm": lambda: (torch.nn.LSTM(4, 5), torch.randn(3, 2, 4)),
    "mha": lambda: (torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(2, 5, 8)),
    "bilinear_upsample": lambda: (
        torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.Upsample(scale_factor=2, mode="bilinear")),
        torch.randn(1, 1, 4, 4),
    ),
}
