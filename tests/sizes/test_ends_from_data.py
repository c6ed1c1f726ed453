"""Ends of slices, ranges and masks that are numbers in tensors, as padding by lengths has them: one graph, one or two
versions, right for every number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import differ
from torch import Tensor

import flashover


def mask_of_numbers(x: Tensor, n: Tensor) -> Tensor:
    most = int(torch.max(n).item())
    return torch.arange(most, dtype=n.dtype).expand(n.shape[0], most) >= n.unsqueeze(1)


def cut_and_masked(x: Tensor, n: Tensor) -> Tensor:
    most = int(n.max())
    return (torch.arange(most).expand(len(n), most) < n.unsqueeze(1)).float() * x[:, :most]


def attention(x: Tensor, n: Tensor) -> Tensor:
    x = x[:, : n.max()]
    pad = torch.arange(n.max())[None] >= n[:, None]
    scores = (x.unsqueeze(1) * x.unsqueeze(2)).masked_fill(pad[:, None], -100.0)
    return scores.softmax(-1).sum(-1)


def reshaped(x: Tensor, n: Tensor) -> Tensor:
    most = n.max().item()
    return x[:, :most].reshape(-1).view(x.shape[0], most) + 1


def zeros_behind(x: Tensor, n: Tensor) -> Tensor:
    y = x.clone()
    y[:, n.max() :] = 0
    for i in range(len(n)):
        y[i, n[i] :] = -1
    return y


def padded_again(x: Tensor, n: Tensor) -> Tensor:
    return torch.nn.functional.pad(x[:, : n.max()], (0, x.shape[1] - int(n.max())))


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "slice": lambda x, n: x[:, : n.max()].sum(1),
    "slice by an item": lambda x, n: x[:, : n.max().item()] + 1,
    "slice by an int": lambda x, n: x[:, : int(n.max())] * 2,
    "the least": lambda x, n: x[:, : n.min()] + 1,
    "amax": lambda x, n: x[:, : n.amax()] + 1,
    "an element": lambda x, n: x[:, : n[0]] + 1,
    "from an element": lambda x, n: x[:, n[0] :].sum(1),
    "between": lambda x, n: x[:, n.min() : n.max()].sum(1),
    "from the end": lambda x, n: x[:, -int(n.max()) :] * 2,
    "range": lambda x, n: torch.arange(n.max()) * 2,
    "mask": lambda x, n: torch.arange(n.max())[None] < n[:, None],
    "mask of numbers": mask_of_numbers,
    "cut and masked": cut_and_masked,
    "attention": attention,
    "reshaped": reshaped,
    "as many as there are": lambda x, n: torch.zeros(n.sum()) + x.sum(),
    "split": lambda x, n: tuple(p.sum() for p in x.flatten()[: n.sum()].split(n.tolist())),
    "rows of their lengths": lambda x, n: torch.cat([x[i, : n[i]] for i in range(x.shape[0])]),
    "written": zeros_behind,
    "padded again": padded_again,
    "new": lambda x, n: x.new_zeros(x.shape[0], n.max()) + x[:, :1],
}

# Where all of x is taken it lies in another way than a part of it, which decides between a view and a copy.
ALL_IS_SPECIAL = {"cut and masked", "reshaped"}
LENGTHS = [[3, 9, 5], [1, 2, 4], [16, 16, 16], [1, 1, 1], [7, 1, 12], [2, 2, 2], [0, 3, 1], [0, 0, 0], [15, 2, 8]]


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_end_that_is_a_number_of_data(name: str) -> None:
    f = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()
    with torch.no_grad():
        for lengths in LENGTHS:
            args = torch.randn(3, 16), torch.tensor(lengths)
            got, want = compiled(*args), f(*args)
            few = min(lengths) < 2 or max(lengths) == 16
            assert (wrong := differ(got, want, rtol=1e-5, atol=1e-5, strides=not few)) == "", f"{lengths}: {wrong}"
    after = flashover.compile_stats()
    assert after["graphs"] - before["graphs"] <= 2 + (name in ALL_IS_SPECIAL)
    assert after["eager_calls"] == before["eager_calls"]
