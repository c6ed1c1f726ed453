"""torch.matmul of every mixture of ranks, and attention by ATen's formula: one compile for all sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from comparing import differ

import flashover

Inputs = tuple[torch.Tensor, ...]
R = torch.randn
attend = F.scaled_dot_product_attention

PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[int], Inputs]]] = {
    "2x3": (torch.matmul, lambda n: (R(5, 4), R(n, 4, 6))),
    "2x4": (torch.matmul, lambda n: (R(5, 4), R(n, 3, 4, 2 * n))),
    "3x1": (torch.matmul, lambda n: (R(n, 5, 4), R(4))),
    "1x3": (torch.matmul, lambda n: (R(4), R(n, 4, 6))),
    "2x1": (torch.matmul, lambda n: (R(n, 4), R(4))),
    "1x1": (torch.matmul, lambda n: (R(n), R(n))),
    "4x3": (torch.matmul, lambda n: (R(n, 2, 3, 4), R(2, 4, n))),
    "one key for all heads": (attend, lambda n: (R(n, 4, 2 * n, 8), R(n, 1, 2 * n, 8), R(n, 1, 2 * n, 8))),
    "rows apart": (
        lambda q, k, v: attend(q.mT, k.mT, v.mT, is_causal=True),
        lambda n: (R(n, 4, 8, 2 * n), R(n, 4, 8, 2 * n), R(n, 4, 8, 2 * n)),
    ),
    "wide values": (attend, lambda n: (R(n, 4, 2 * n, 8), R(n, 4, n, 8), R(n, 4, n, 12))),
}


def gradients(f: Callable[..., torch.Tensor], inputs: Inputs) -> list[torch.Tensor]:
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = f(*leaves)
    (out * torch.arange(out.numel()).view(out.shape).cos()).sum().backward()
    return [out.detach(), *(t.grad for t in leaves if t.grad is not None)]


@pytest.mark.parametrize("trained", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_serves_every_size(name: str, trained: bool) -> None:
    f, inputs = PROGRAMS[name]
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for n in (2, 3, 5, 7, 1):
        x = inputs(n)
        got, want = (gradients(g, x) if trained else [g(*x)] for g in (compiled, f))
        # (The stride of a gradient's only batch is of no consequence, and ATen's differs by the way that it took.)
        wrong = differ(got, want, rtol=1e-4, atol=1e-4, strides=n > 1)
        assert wrong == "", f"size {n}: {wrong}"
    assert flashover.compile_stats()["graphs"] - before == 2
