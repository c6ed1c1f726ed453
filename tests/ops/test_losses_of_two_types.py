"""Losses whose input and target have two types: eager's type, or eager's error."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import flashover

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool)
LOSSES = ("huber_loss", "smooth_l1_loss", "mse_loss", "soft_margin_loss", "binary_cross_entropy_with_logits")


def outcome(f: object, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | type[Exception]:
    leaf = x.clone().requires_grad_()
    try:
        loss = f(leaf, y)  # type: ignore[operator]
        loss.backward()
    except Exception as e:
        return type(e)
    return loss.detach(), leaf.grad


@pytest.mark.parametrize("name", LOSSES)
def test_types_of_the_loss_and_its_gradient(name: str) -> None:
    f = getattr(F, name)
    for kind, other in itertools.product([t for t in TYPES if t.is_floating_point], TYPES):
        x, y = torch.linspace(-2, 2, 6).to(kind), torch.linspace(0, 1, 6).to(other)
        want = outcome(f, x, y)
        flashover.reset()
        got = outcome(flashover.compile(f), x, y)
        if isinstance(want, type) or isinstance(got, type):
            assert isinstance(got, type) and isinstance(want, type), (kind, other, got, want)
            continue
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=2e-2, atol=1e-2)  # the types, too
