"""Programs whose inputs' sizes change, and what they are called with."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

SIZES = (5, 2, 3, 8, 16, 17, 31, 64, 100, 257)

W = torch.linspace(-1, 1, 24 * 16).view(24, 16)
B = torch.linspace(-1, 1, 24)
SCALE, SHIFT = torch.linspace(1, 2, 16), torch.linspace(-1, 0, 16)
TABLE = torch.linspace(-1, 1, 40 * 16).view(40, 16)


def shift(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0] * 2, -1).sum(1).view(x.shape[0], 2)


def heads(x: torch.Tensor) -> torch.Tensor:
    b, t, c = x.shape
    q = x.view(b, t, 4, c // 4).transpose(1, 2)
    return (q @ q.transpose(-1, -2) / 2).softmax(-1).matmul(q).transpose(1, 2).reshape(b, t, c)


def positions(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(x.shape[1], device=x.device)[None, :, None]


def causal(x: torch.Tensor) -> torch.Tensor:
    t = x.shape[1]
    scores = x @ x.transpose(1, 2)
    return scores.masked_fill(torch.ones(t, t, device=x.device).tril() == 0, float("-inf")).softmax(-1)


# name -> (program, shape of n; its first size is n), all whole and compiled once.
PROGRAMS: dict[str, tuple[Callable[..., object], Callable[[int], tuple[int, ...]]]] = {
    "pointwise": (lambda x: (x.sin() * 2 + 1).relu(), lambda n: (n, 16)),
    "window": (lambda x: x[-511:] * 2, lambda n: (n, 16)),  # of a cache that is not full
    "broadcast": (lambda x: x * SCALE + SHIFT, lambda n: (n, 16)),
    "last dimension": (lambda x: x.exp() - x, lambda n: (4, n)),
    "sum": (lambda x: x.sum(-1), lambda n: (n, 16)),
    "sum over the size": (lambda x: x.sum(0), lambda n: (n, 16)),
    "mean over the size": (lambda x: x.mean(0), lambda n: (n, 16)),
    "sum of all": (lambda x: x.sum(), lambda n: (n, 16)),
    "max": (lambda x: x.max(-1), lambda n: (4, n)),
    "argmax": (lambda x: x.argmax(0), lambda n: (n, 16)),
    "softmax": (lambda x: x.softmax(-1), lambda n: (n, 16)),
    "softmax over the size": (lambda x: x.softmax(-1), lambda n: (4, n)),
    "layer_norm": (lambda x: F.layer_norm(x, (16,), SCALE, SHIFT), lambda n: (n, 16)),
    "variance": (lambda x: torch.var_mean(x, 1), lambda n: (3, n)),
    "transpose": (lambda x: x.t() * 2, lambda n: (n, 16)),
    "transpose, contiguous": (lambda x: x.t().contiguous() + 1, lambda n: (n, 16)),
    "permute": (lambda x: x.permute(2, 0, 1).exp(), lambda n: (n, 3, 4)),
    "flatten": (lambda x: x.flatten() + 1, lambda n: (n, 3, 4)),
    "view": (shift, lambda n: (n, 16)),
    "unsqueeze": (lambda x: x[:, None] - x[None], lambda n: (n,)),
    "cat": (lambda x: torch.cat([x, x * 2], 1), lambda n: (n, 16)),
    "cat over the size": (lambda x: torch.cat([x, x * 2]), lambda n: (n, 16)),
    "stack": (lambda x: torch.stack([x, x + 1]), lambda n: (n, 16)),
    "slice": (lambda x: x[:, 2:9] * 2, lambda n: (n, 16)),
    "last": (lambda x: x[-1] + x[0], lambda n: (n, 16)),
    "flip": (lambda x: x.flip(0) + 1, lambda n: (n, 16)),
    "pad": (lambda x: F.pad(x, (1, 2)), lambda n: (n, 16)),
    "where": (lambda x: torch.where(x > 0, x, x.exp()), lambda n: (n, 16)),
    "linear": (lambda x: F.gelu(F.linear(x, W, B)), lambda n: (n, 16)),
    "linear in three dimensions": (lambda x: F.linear(x, W, B), lambda n: (n, 3, 16)),
    "matmul": (lambda x: x @ x.t(), lambda n: (n, 16)),
    "batched matmul": (lambda x: x @ x.transpose(1, 2), lambda n: (n, 5, 16)),
    "heads": (heads, lambda n: (3, n, 16)),
    "heads, batch": (heads, lambda n: (n, 5, 16)),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        lambda n: (2, 3, n, 16),
    ),
    "positions": (positions, lambda n: (2, n, 16)),
    "causal mask": (causal, lambda n: (2, n, 16)),
    "embedding": (lambda x: F.embedding((x * 5).long().clamp(0, 39), TABLE), lambda n: (n, 4)),
    "cumsum": (lambda x: x.cumsum(0), lambda n: (n, 16)),
    "zeros": (lambda x: torch.zeros(x.shape[0], 3, device=x.device) + x[:, :3], lambda n: (n, 16)),
    "size as a result": (lambda x: (x + 1, x.shape[0], x.numel()), lambda n: (n, 16)),
    "arithmetic on sizes": (lambda x: x.view(-1)[: x.shape[0] * 3] + 1, lambda n: (n, 16)),
    "len": (lambda x: (x * 2, len(x)), lambda n: (n, 16)),
    "a size as a number": (lambda x: x.sum(0) / x.shape[0], lambda n: (n, 16)),
    "repeat": (lambda x: x.repeat(2, 3), lambda n: (n, 4)),
    "expand": (lambda x: x[:, :1].expand(-1, 5) + 1, lambda n: (n, 4)),
    "chunk": (lambda x: torch.cat([c + 1 for c in x.chunk(2, 1)], 1), lambda n: (n, 8)),
    "bool": (lambda x: (x > 0).any(1), lambda n: (n, 8)),
}
