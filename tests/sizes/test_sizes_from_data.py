"""Sizes that follow from data: captured whole, one compile, right for every number of elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import differ, double
from torch import Tensor

import flashover


def experts(x: Tensor, choice: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(3):
        (rows,) = torch.where(choice == e)
        out.index_add_(0, rows, torch.tanh(x[rows] @ w[e]) * (e + 1))
    return out


def counted(x: Tensor, m: Tensor) -> Tensor:
    n = m.sum().item()
    return torch.zeros(n, 3) + torch.arange(n).unsqueeze(1) + x.sum()


def split_by_data(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    n = m.sum()
    lengths = torch.stack([n, x.shape[0] - n])
    return tuple(part.sum(0) for part in x.split(lengths.tolist()))


def two_masks(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    first = x[m]
    second = first[first[:, 0] > 0]
    return first * 2, second.sum(0)


def written(x: Tensor, m: Tensor) -> Tensor:
    y = x.clone()
    y[m] = x[m] * 2 + 1
    return y


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sum of a mask": lambda x, m: x[m].sum(),
    "mean of a mask": lambda x, m: (x[m] * 2).sum(0),
    "a mask's rows": lambda x, m: x[m],
    "computed rows": lambda x, m: torch.relu(x[m] * 2 + 1),
    "product of rows": lambda x, m: x[m] @ x.t(),
    "nonzero": lambda x, m: torch.nonzero(m),
    "nonzero of a matrix": lambda x, m: torch.nonzero(x > 0),
    "nonzero and index": lambda x, m: x[torch.nonzero(m).squeeze(1)].exp(),
    "where and index_add": lambda x, m: x.index_add(0, torch.where(m)[0], x[torch.where(m)[0]] * 3),
    "masked_select": lambda x, m: x.masked_select(m.unsqueeze(1)) * 2,
    "masked_select of a matrix": lambda x, m: torch.masked_select(x, x > 0.5).sum(),
    "item as a size": counted,
    "two points": lambda x, m: (x[m].sum(0), x[~m].sum(0)),
    "points in dependence": two_masks,
    "split": split_by_data,
    "cat": lambda x, m: torch.cat([x[m], x[~m] * 2]),
    "softmax": lambda x, m: torch.softmax(x[m], -1),
    "layer norm": lambda x, m: torch.nn.functional.layer_norm(x[m], (4,)),
    "repeat_interleave": lambda x, m: x.repeat_interleave(m.long() * 2, dim=0) + 1,
    "unique": lambda x, m: torch.unique(m.long() * 3) * 2,
    "unique with counts": lambda x, m: torch.unique((x[:, 0] * 2).long(), return_inverse=True, return_counts=True),
    "bincount": lambda x, m: torch.bincount(m.long(), minlength=1) * 2,
    "shape of a mask": lambda x, m: x[m].reshape(x[m].shape[0] * 2, 2) + 1,
    "write by a mask": written,
    "from a mask to the rest": lambda x, m: (x[m].sum() + x).relu(),
}


def masks(n: int) -> dict[str, Tensor]:
    one = torch.zeros(n, dtype=torch.bool)
    one[n // 2] = True
    return {
        "some": torch.arange(n) % 3 == 1,
        "none": torch.zeros(n, dtype=torch.bool),
        "one": one,
        "all": torch.ones(n, dtype=torch.bool),
        "random": torch.rand(n) > 0.5,
    }


def check(compiled: Callable[..., Any], f: Callable[..., Any], args: list[Tensor], what: str) -> None:
    got, want, exact = compiled(*args), f(*args), f(*[double(a) for a in args])
    assert (wrong := differ(got, want, rtol=1e-5, atol=1e-5)) == "", f"{what}: {wrong}"
    as_f64 = [t.double() for t in (got if isinstance(got, tuple) else (got,))]
    exactly = [t.double() for t in (exact if isinstance(exact, tuple) else (exact,))]
    assert (wrong := differ(as_f64, exactly, rtol=1e-4, atol=1e-4, strides=False)) == "", f"{what}, fp64: {wrong}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_serves_every_number_of_elements(name: str) -> None:
    f = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    eager = flashover.compile_stats().get("eager_calls", 0)
    torch.manual_seed(0)
    with torch.no_grad():
        for what, mask in masks(12).items():
            check(compiled, f, [torch.randn(12, 4), mask], what)
    assert flashover.compile_stats()["graphs"] - before == 1
    assert flashover.compile_stats().get("eager_calls", 0) == eager


def test_experts_with_changing_numbers_of_tokens() -> None:
    flashover.reset()
    compiled = flashover.compile(experts, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    w = torch.randn(3, 4, 4)
    for seed in range(6):
        torch.manual_seed(seed)
        with torch.no_grad():
            check(compiled, experts, [torch.randn(12, 4), torch.randint(0, 1 + seed % 3, (12,)), w], f"seed {seed}")
    assert flashover.compile_stats()["graphs"] - before == 1
