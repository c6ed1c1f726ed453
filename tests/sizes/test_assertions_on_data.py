"""What exported programs say of sizes that follow from data, as operators: one version for all values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flashover

aten = torch.ops.aten


def by_operator(y: Tensor) -> Tensor:
    return torch.ones(aten.item.default(y.sum()))


def constrained(y: Tensor) -> Tensor:
    n = y.sum().item()
    aten.sym_constrain_range_for_size.default(n, min=0)
    aten.sym_constrain_range.default(n, min=0, max=100)
    return torch.ones(n)


def asserted(y: Tensor) -> Tensor:
    n = y.sum().item()
    enough = n >= 2
    aten._assert_scalar.default(enough, "too few")
    return torch.ones(n)


def asserted_at_once(y: Tensor) -> Tensor:
    n = y.sum().item()
    torch._assert_scalar(n > 1, "too few")
    return torch.ones(n)


@pytest.mark.parametrize("f", [by_operator, constrained, asserted, asserted_at_once])
def test_one_version(f: Callable[[Tensor], Tensor]) -> None:
    compiled = flashover.compile(f, fullgraph=True, options={"remember_sizes": False})
    for numbers in ([1, 2, 3], [4, 5], [7, 1, 1, 1], [2]):
        y = torch.tensor(numbers)
        torch.testing.assert_close(compiled(y), f(y))
    assert len(compiled.versions) <= 2  # (one row of numbers has a layout of its own)


@pytest.mark.parametrize("f", [asserted, asserted_at_once])
def test_what_is_not_so_raises(f: Callable[[Tensor], Tensor]) -> None:
    compiled = flashover.compile(f)
    compiled(torch.tensor([5]))
    with pytest.raises(RuntimeError, match="too few"):
        compiled(torch.tensor([1]))
    with pytest.raises(RuntimeError):  # (torch._check says it in other words)
        flashover.compile(constrained)(torch.tensor([-3]))
