"""One compile serves every size on CUDA."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sized_programs
import torch
import torch.nn.functional as F
from comparing import differ
from sized_programs import PROGRAMS, SIZES

import flashover

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_serves_every_size(name: str, mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for tensor in ("W", "B", "SCALE", "SHIFT", "TABLE"):
        monkeypatch.setattr(sized_programs, tensor, getattr(sized_programs, tensor).cuda())
    f, shape = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f, dynamic=True, fullgraph=True, mode=mode)
    before = flashover.compile_stats()["graphs"]
    for n in SIZES + SIZES:
        x = torch.randn(shape(n), device="cuda")
        assert (wrong := differ(compiled(x), f(x), rtol=1e-4, atol=1e-4)) == "", f"size {n}: {wrong}"
    made = flashover.compile_stats()["graphs"] - before
    assert made == 1, f"compiled {made} times"


def attend(mask: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def f(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        seen = None
        if mask == "bool":
            seen = (torch.arange(k.shape[2], device=k.device) % 5 != 3)[None, None, None]
        elif mask == "added":
            seen = (torch.arange(k.shape[2], device=k.device) % 5 * -1.0).to(k.dtype)[None, None, None]
        return F.scaled_dot_product_attention(
            q, k, k.flip(2), seen, is_causal=mask == "causal", enable_gqa=q.shape[1] != k.shape[1]
        )

    return f


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added"])
@pytest.mark.parametrize("heads", [8, 2])
def test_attention_over_a_growing_cache(heads: int, mask: str) -> None:
    """By kernels that make no plan for each size (cuDNN takes 40 ms for one), as right as eager's."""
    f = attend(mask)
    compiled = flashover.compile(f, dynamic=True, fullgraph=True)
    before = flashover.compile_stats()["frames"]
    for rows, keys in [(2, 33), (7, 48), (16, 16), (5, 257)]:
        q = torch.randn(2, 8, rows, 64, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(2, heads, keys, 64, device="cuda", dtype=torch.bfloat16)
        want, got, exact = f(q, k), compiled(q, k), f(q.double(), k.double())
        assert got.shape == want.shape and got.stride() == want.stride()
        allowed = 2 * (want.double() - exact).abs().max() + 1e-2
        assert (got.double() - exact).abs().max() <= allowed, (rows, keys)
    assert flashover.compile_stats()["frames"] - before == 1
