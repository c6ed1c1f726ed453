"""Masks and score functions as people give them to flex_attention: each is made for sizes, and reads tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor


class Sizes(NamedTuple):
    batch: int
    heads: int
    queries: int
    keys: int


class Program(NamedTuple):
    score_mod: Callable[..., Any] | None = None
    mask_mod: Callable[..., Any] | None = None
    tensors: tuple[Tensor, ...] = ()  # that the functions read


def _full(s: Sizes) -> Program:
    return Program()


def _causal(s: Sizes) -> Program:
    return Program(mask_mod=lambda b, h, i, j: i >= j)


def _window(s: Sizes) -> Program:
    return Program(mask_mod=lambda b, h, i, j: (i >= j) & (i - j <= 19))


def _prefix(s: Sizes) -> Program:
    lengths = torch.arange(s.batch) * 7 + 5
    return Program(mask_mod=lambda b, h, i, j: (j < lengths[b]) | (i >= j), tensors=(lengths,))


def _documents(s: Sizes) -> Program:
    documents = torch.arange(max(s.queries, s.keys)) // 13
    return Program(mask_mod=lambda b, h, i, j: documents[i] == documents[j], tensors=(documents,))


def _padding(s: Sizes) -> Program:
    lengths = torch.tensor([s.keys, 0, s.keys // 2, 1])[torch.arange(s.batch) % 4]  # one batch sees nothing
    return Program(mask_mod=lambda b, h, i, j: j < lengths[b], tensors=(lengths,))


def _dilated(s: Sizes) -> Program:
    return Program(mask_mod=lambda b, h, i, j: (i >= j) & ((i - j) % 3 == 0))


def _neighbourhood(s: Sizes) -> Program:
    """Of points of an image of rows of 8."""

    def near(b: Any, h: Any, i: Any, j: Any) -> Any:
        return ((i // 8 - j // 8).abs() <= 1) & ((i % 8 - j % 8).abs() <= 2)

    return Program(mask_mod=near)


def _by_head(s: Sizes) -> Program:
    return Program(mask_mod=lambda b, h, i, j: torch.where(h % 2 == 0, i >= j, i - j > 3))


def _alibi(s: Sizes) -> Program:
    slopes = torch.exp2(-8.0 * (torch.arange(s.heads) + 1) / s.heads)
    return Program(score_mod=lambda x, b, h, i, j: x + slopes[h] * (j - i), tensors=(slopes,))


def _computed_slopes(s: Sizes) -> Program:
    return Program(score_mod=lambda x, b, h, i, j: x + torch.exp2(-((h + 1) * 8.0 / s.heads)) * (j - i))


def _relative(s: Sizes) -> Program:
    table = torch.randn(s.heads, s.queries + s.keys)
    return Program(score_mod=lambda x, b, h, i, j: x + table[h, i - j + s.keys], tensors=(table,))


def _dense_bias(s: Sizes) -> Program:
    bias = torch.randn(s.batch, s.heads, s.queries, s.keys).to(torch.bfloat16)
    return Program(score_mod=lambda x, b, h, i, j: x + bias[b, h, i, j], tensors=(bias,))


def _soft_cap(s: Sizes) -> Program:
    return Program(score_mod=lambda x, b, h, i, j: 5 * torch.tanh(x / 5))


def _masked_by_score(s: Sizes) -> Program:
    return Program(score_mod=lambda x, b, h, i, j: torch.where(i >= j, x, -float("inf")))


def _table_of_table(s: Sizes) -> Program:
    kinds = torch.arange(s.keys) % 5
    weight = torch.randn(5)
    return Program(score_mod=lambda x, b, h, i, j: x * 1.5 + weight[kinds[j]], tensors=(kinds, weight))


def _combined(s: Sizes) -> Program:
    documents = torch.arange(max(s.queries, s.keys)) // 29
    slopes = torch.rand(s.heads)

    def score(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return 20 * torch.tanh(x / 20) - slopes[h] * (i - j).abs()

    return Program(score, lambda b, h, i, j: (i >= j) & (documents[i] == documents[j]), (documents, slopes))


PROGRAMS: dict[str, Callable[[Sizes], Program]] = {
    "full": _full,
    "causal": _causal,
    "window": _window,
    "prefix": _prefix,
    "documents": _documents,
    "padding": _padding,
    "dilated": _dilated,
    "neighbourhood": _neighbourhood,
    "by_head": _by_head,
    "alibi": _alibi,
    "computed_slopes": _computed_slopes,
    "relative": _relative,
    "dense_bias": _dense_bias,
    "soft_cap": _soft_cap,
    "masked_by_score": _masked_by_score,
    "table_of_table": _table_of_table,
    "combined": _combined,
}


@contextlib.contextmanager
def moved_into(p: Program, tensors: Sequence[Tensor]) -> Iterator[Program]:
    """The same functions, which read these tensors meanwhile."""
    at = {id(t): i for i, t in enumerate(p.tensors)}
    cells = [c for f in (p.score_mod, p.mask_mod) for c in (f.__closure__ if f else None) or ()]
    before = [(c, c.cell_contents) for c in cells if id(c.cell_contents) in at]
    try:
        for c, t in before:
            c.cell_contents = tensors[at[id(t)]]
        yield p
    finally:
        for c, t in before:
            c.cell_contents = t


def block_mask(p: Program, s: Sizes, block: Any = 32, device: str = "cpu") -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    if p.mask_mod is None:
        return None
    return create_block_mask(p.mask_mod, s.batch, s.heads, s.queries, s.keys, device=device, BLOCK_SIZE=block)
