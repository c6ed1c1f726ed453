"""What one version for all sizes runs is what a version for one size runs: no copies, masks or kernels beside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import flashover


class Attention(nn.Module):
    """Reshapes that merge and split dims around products; a mask that is true for every length."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (p.view(b, t, 4, 8).transpose(1, 2) for p in self.qkv(self.norm(x)).split(c, -1))
        seen = (torch.arange(t)[:, None] >= 0).expand(b, 1, t, t)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return x + self.out(y.transpose(1, 2).reshape(b, t, c))


def merges(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.flatten(0, 1) @ w).view(x.shape).relu()


def steps(f: Callable[..., Any], *args: torch.Tensor, dynamic: bool) -> list[str]:
    with torch.no_grad():
        [graph] = flashover.explain(f, dynamic=dynamic)(*args).graphs
    return [s["name"] for s in graph["steps"] if s["kind"] == "kernel" and not s["frozen"]]


@pytest.mark.parametrize(
    ("f", "shapes"), [(Attention().eval(), [(3, 7, 32)]), (merges, [(3, 7, 32), (32, 32)])], ids=["attention", "merges"]
)
def test_no_more_kernels_than_static(f: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    args = [torch.randn(s) for s in shapes]
    static, symbolic = steps(f, *args, dynamic=False), steps(f, *args, dynamic=True)
    assert len(symbolic) == len(static), (static, symbolic)
    assert not any("reshape" in name or "where" in name for name in symbolic), symbolic


def test_a_mask_of_all_lengths_is_right() -> None:
    model = Attention().eval()
    fast = flashover.compile(model, dynamic=True)
    with torch.no_grad():
        for b, t in [(3, 7), (2, 33), (5, 2), (4, 64)]:
            x = torch.randn(b, t, 32)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
            wide = Attention().double().eval()
            wide.load_state_dict(model.state_dict())
            torch.testing.assert_close(fast(x).double(), wide(x.double()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bound", [0, 1, 5])
@pytest.mark.parametrize("compare", ["ge", "gt", "le", "lt"])
def test_comparisons_that_sizes_decide(compare: str, bound: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        row = torch.arange(x.shape[0])
        seen = getattr(torch, compare)(row, bound), getattr(torch, compare)(torch.full_like(row, bound), row)
        return torch.where(seen[0], x, -x) + torch.where(seen[1], x * 2, x * 3)

    fast = flashover.compile(f, dynamic=True)
    for n in (2, 3, 5, 6, 7, 40):
        x = torch.randn(n)
        assert torch.equal(fast(x), f(x)), (compare, bound, n)


FUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "softmax": lambda x: x.softmax(-1),
    "normalized": lambda x: x.exp() / x.exp().sum(1, keepdim=True),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "a sum of what is returned": lambda x: (lambda y: (y, y.sum((0, 1))))(x.exp() + 1),
}


@pytest.mark.parametrize("name", FUSED)
def test_reductions_fuse_as_those_of_numbers(name: str) -> None:
    def kernels(dynamic: bool) -> int:
        return flashover.explain(FUSED[name], dynamic=dynamic)(torch.randn(5, 12, 7)).text().count("launch k")

    assert kernels(True) == kernels(False) == 1
