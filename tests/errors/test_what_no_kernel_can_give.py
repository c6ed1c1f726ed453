"""Graphs that no kernel can give: captured whole and run eager, with a warning, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from comparing import whole

import flashover

Tensor = torch.Tensor


def x() -> Tensor:
    return torch.arange(12.0).reshape(3, 4) * 0.1


def test_whole_capture_of_what_no_kernel_can_give() -> None:
    def f(a: Tensor, w: Tensor) -> Any:
        return a.view(torch.int32), a * w

    c = whole(f)
    with pytest.warns(RuntimeWarning, match="captured whole"):
        got = c(x(), x())
    assert torch.equal(got[0], x().view(torch.int32))
    assert torch.equal(got[1], x() * x())
    with pytest.raises(flashover.exc.BackendCompilerFailed, match="reinterpreted view"):
        c(x(), x().requires_grad_())
    assert flashover.compile(f)(x(), x().requires_grad_())[1].requires_grad
