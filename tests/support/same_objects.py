"""Results that hold objects of the program's own classes: compared attribute by attribute."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import torch
from torch.utils import _pytree as pytree

Tensor = torch.Tensor


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b), (type(a), type(b))
    x, y = pytree.tree_leaves(a), pytree.tree_leaves(b)
    assert len(x) == len(y)
    for p, q in zip(x, y, strict=True):
        if isinstance(q, Tensor):
            assert (p.dtype, p.shape) == (q.dtype, q.shape)
            torch.testing.assert_close(p, q)
        elif dataclasses.is_dataclass(q) or (
            hasattr(q, "__dict__") and not callable(q) and not isinstance(q, enum.Enum)
        ):
            same(vars(p), vars(q))
        else:
            assert p == q, (p, q)
