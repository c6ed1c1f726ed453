"""Tensor subclasses: how results of their classes are made again of plain tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

from flashover import _C


def _wrap(
    cls: Any, names: tuple[str, ...], context: Any, size: tuple[int, ...], stride: tuple[int, ...], *inner: Any
) -> torch.Tensor:
    return cls.__tensor_unflatten__(dict(zip(names, inner, strict=True)), context, torch.Size(size), stride)


def as_class(cls: type[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    return torch.Tensor.as_subclass(tensor, cls)


def parts(wrapper: Any) -> tuple[Any, ...] | None:
    """A function, and its arguments, that make the wrapper; None: it trains, and the wrapper has a history."""
    with torch._C.DisableTorchFunctionSubclass():
        if wrapper.requires_grad:
            return None
        names, context = wrapper.__tensor_flatten__()
        inner = [getattr(wrapper, name) for name in names]
        return (_wrap, type(wrapper), tuple(names), context, tuple(wrapper.size()), tuple(wrapper.stride()), *inner)


def register() -> None:
    _C.mark(return_and_correct_aliasing, "allow")  # (bookkeeping on the wrappers)
