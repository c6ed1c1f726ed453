"""Precision flags that change between calls, scaled gradients in fp16, memory seen in odd ways."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_tools import agree, check

import flashover

pytestmark = pytest.mark.gpu


@contextmanager
def flag(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@pytest.mark.parametrize(
    ("owner", "name", "fn", "dtype"),
    [
        (torch.backends.cudnn, "allow_tf32", lambda x, w: F.conv2d(x, w), torch.float32),
        (torch.backends.cudnn, "deterministic", lambda x, w: F.conv2d(x, w), torch.float32),
        (torch.backends.cuda.matmul, "allow_tf32", lambda x, w: x @ x.mT, torch.float32),
        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", lambda x, w: x @ x.mT, torch.float16),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", lambda x, w: x @ x.mT, torch.bfloat16),
    ],
)
def test_flags_between_calls(owner: Any, name: str, fn: Callable[..., Any], dtype: torch.dtype) -> None:
    """What torch would do under the flag of the call, to the bit."""
    torch.manual_seed(0)
    x = torch.randn(4, 32, 64, 64, device="cuda", dtype=dtype)
    w = torch.randn(32, 32, 3, 3, device="cuda", dtype=dtype)
    fast = flashover.compile(fn, fullgraph=True)
    for value in (False, True, False, True):
        with flag(owner, name, value), torch.no_grad():
            want = fn(x, w)
            off = float((fast(x, w) - want).abs().max())
            # (Another layout may add in another order; tf32 is a thousand times further off.)
            assert off <= 2e-5 * float(want.abs().max()) if dtype == torch.float32 else off == 0


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_scaled_gradients_in_fp16(mode: str | None) -> None:
    """A step whose gradients overflow is left out, and the scale follows, as in eager."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 8)
    ).cuda()
    other = copy.deepcopy(model)

    def train(model: torch.nn.Module, run: Callable[..., torch.Tensor]) -> list[tuple[float, float]]:
        scaler, steps = torch.amp.GradScaler("cuda", init_scale=2.0**14), torch.optim.SGD(model.parameters(), 0.05)
        torch.manual_seed(1)
        seen = []
        for i in range(8):
            x = torch.randn(16, 64, device="cuda") * (1e6 if i in (2, 5) else 1)
            steps.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = run(x).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(steps)
            scaler.update()
            seen.append((loss.item(), scaler.get_scale()))
        return seen

    got, want = train(model, flashover.compile(model, mode=mode)), train(other, other)
    assert [scale for _, scale in got] == [scale for _, scale in want]
    for (a, _), (b, _) in zip(got, want, strict=True):
        assert a == pytest.approx(b, rel=2e-2, nan_ok=True)
    agree(list(model.parameters()), list(other.parameters()), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 2).as_strided((10, 6), (64, 3), 5) + 1,
        lambda x: (x * 2).as_strided((10, 6), (1, 1), 5) + 1,
        lambda x: x[::2, ::3].as_strided((5, 5), (7, 11), 2) * 2,
        lambda x: x[:1].expand(8, 64).unfold(1, 8, 4).mean(-1) + 1,
        lambda x: x[:, :1].expand(64, 64).unfold(0, 8, 4).mean(-1) + 1,
        lambda x: torch.var_mean(x[:, :1] + float("inf"), 1, correction=0),
        lambda x: torch.var_mean((x[0, 0] + float("inf"))[None], correction=0),
    ],
)
def test_odd_views_and_infinities(fn: Callable[..., Any]) -> None:
    check(fn, torch.randn(64, 64, device="cuda"))
