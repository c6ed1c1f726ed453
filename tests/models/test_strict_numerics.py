"""The option strict_numerics: results, and gradients, are eager's to the bit."""

from __future__ import annotations

from typing import Any

import models as bench
import pytest
import torch
import zoo
from strict_net import Net

import flashover

STRICT = {"strict_numerics": True}


def bits(t: torch.Tensor) -> torch.Tensor:
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.detach().contiguous().reshape(-1).contiguous().view(torch.uint8)


def check(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert len(got) == len(wanted) > 0
    for a, b in zip(got, wanted, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(bits(a), bits(b)), f"off by {(a.double() - b.double()).abs().max():.2g}"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", zoo.ALL)
def test_models(name: str, precision: str) -> None:
    model, args, kwargs = bench.make(name, small=True)
    with bench.precision_scope(precision), torch.no_grad():
        fast = flashover.compile(model, fullgraph=True, options=STRICT)
        for _ in range(2):
            check(bench.tensors(fast(*args, **kwargs)), bench.tensors(model(*args, **kwargs)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Net().to(dtype)
    x = torch.randn(6, 3, 12, 12, dtype=dtype)

    def step(f: Any) -> list[torch.Tensor]:
        model.zero_grad()
        y = f(x)
        torch.nn.functional.nll_loss(y, torch.arange(6) % 5).backward()
        return [y, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    wanted = step(model)
    check(step(flashover.compile(model, options=STRICT)), wanted)


def test_half_precision_without_autocast() -> None:
    model = Net().half().eval()
    x = torch.randn(2, 3, 9, 9).half()
    with torch.no_grad():
        check([flashover.compile(model, options=STRICT)(x)], [model(x)])
