"""Functions of numpy's arrays as functions of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

try:
    import numpy as np
except ModuleNotFoundError:
    np = None  # type: ignore[assignment]


def _array(tensor: torch.Tensor) -> Any:
    if torch.compiler.is_compiling():
        from flashover import _arrays

        return _arrays.with_gradient(tensor)
    return tensor.numpy()


def wrap_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Makes of a function from numpy's arrays to such arrays one from tensors to tensors: compiled, gradients pass."""
    if np is None:
        return fn

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, _array, (args, kwargs))
        return pytree.tree_map_only(np.ndarray, torch.as_tensor, fn(*args, **kwargs))

    return wrapped
