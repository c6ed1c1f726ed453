"""Softmax under finite masks, with biases that are looked up: as in windowed attention."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import flashover


def windows(qk: Any, table: Any, index: Any, mask: Any, v: Any) -> Any:
    bias = table[index.view(-1)].view(*index.shape, -1).permute(2, 0, 1)
    weights = (qk[0] @ qk[1].mT + bias + mask.unsqueeze(1)).softmax(-1)
    return weights @ v


def arguments() -> list[Any]:
    torch.manual_seed(0)
    mask = torch.zeros(6, 49, 49)
    mask[::2, :20, 20:] = mask[::2, 20:, :20] = -100
    mask[1, 3] = -math.inf  # every weight of this query is NaN
    return [torch.randn(2, 6, 3, 49, 32), torch.randn(169, 3), torch.randint(-169, 169, (49, 49)), mask,
            torch.randn(6, 3, 49, 32)]  # fmt: skip


def gradients(f: Any, arguments: list[Any], autocast: bool) -> list[torch.Tensor]:
    leaves = [a.detach().clone().requires_grad_() if a.is_floating_point() else a for a in arguments]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = f(*leaves)
    weight = torch.linspace(0, 1, out.numel(), dtype=out.dtype).view_as(out)
    (out * weight).sum().backward()
    return [out, *(a.grad for a in leaves if a.is_floating_point())]


@pytest.mark.parametrize("autocast", [False, True])
def test_training_of_masked_windows(autocast: bool) -> None:
    given = arguments()
    got = gradients(flashover.compile(windows, fullgraph=True), given, autocast)
    eager = gradients(windows, given, autocast)
    want = gradients(windows, [a.double() if a.is_floating_point() else a for a in given], False)
    for g, e, w in zip(got, eager, want, strict=True):
        assert g.dtype == e.dtype and torch.equal(g.isnan(), e.isnan())
        error, allowed = (g - w).nan_to_num().norm(), (e - w).nan_to_num().norm()
        assert error <= 2 * allowed + 1e-5 * w.nan_to_num().norm()


def test_looked_up_once() -> None:
    """Not for each window, and again for each pass over a row."""
    e = flashover.explain(windows)(*(a.requires_grad_() if a.is_floating_point() else a for a in arguments()))
    reads = [k for k in e.kernels if "job->error" in k["source"].split("extern")[0]]  # checks what it looks up
    assert len(reads) == 1 and "amax" not in reads[0]["label"], [k["label"] for k in reads]


def test_small_weights_are_kept_for_others() -> None:
    """Weights near 0 count as 0 in products alone."""

    def f(x: Any, v: Any) -> Any:
        weights = x.softmax(-1)
        return weights @ v, weights.log()

    x, v = torch.zeros(3, 4, 40), torch.randn(3, 40, 8)
    x[..., ::2] = -100
    got = flashover.compile(f, fullgraph=True)(x, v)
    for g, w in zip(got, f(x, v), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-2, atol=1e-5)  # (a denormal number has few digits)
