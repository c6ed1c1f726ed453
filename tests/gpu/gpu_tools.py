"""What the GPU tests share: compile, run twice, hold against eager (and eager against a double reference)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from models import tensors

import flashover


def agree(got: Any, want: Any, rtol: float = 1e-4, atol: float = 1e-5, strides: bool = True) -> None:
    a, b = tensors(got), tensors(want)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert (x.dtype, x.shape, x.device) == (y.dtype, y.shape, y.device)
        if strides:
            assert x.stride() == y.stride(), f"strides {x.stride()}, eager's {y.stride()}"
        if x.itemsize == 1 and x.is_floating_point():
            x, y = x.float(), y.float()  # (assert_close takes no tolerance for these)
        torch.testing.assert_close(x, y, rtol=rtol, atol=atol, equal_nan=True)


def check(
    fn: Callable[..., Any],
    *args: Any,
    backend: str = "flashover",
    rtol: float = 1e-4,
    atol: float = 1e-5,
    calls: int = 2,
    **kwargs: Any,
) -> Any:
    """fn compiled equals fn, outputs and mutated arguments, on every call; nothing runs eager."""
    fast = flashover.compile(fn, fullgraph=True, backend=backend)
    with torch.no_grad():
        for _ in range(calls):
            mine, theirs = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
            got, want = fast(*mine[0], **mine[1]), fn(*theirs[0], **theirs[1])
            agree(got, want, rtol, atol)
            agree(mine, theirs, rtol, atol)
    return fast


@torch.library.custom_op("flashover_gpu::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    """An operator that waits for the device, so that it is part of no CUDA graph."""
    return x * (1 + 0 * int(x.sum().item() > 0))


@waits.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


waits.register_autograd(lambda ctx, g: g)
