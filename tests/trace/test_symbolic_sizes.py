"""A trace with symbols for sizes: the graph's types are expressions, and what was asked of them are guards."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from flashover import _C


def trace(f: Callable[..., torch.Tensor], *shapes: tuple[int, ...], symbolic: dict[int, list[int]]) -> object:
    tensors = [torch.randn(s) for s in shapes]
    inputs = [(f"x{i}", "user", t) for i, t in enumerate(tensors)]
    return _C.trace_function(lambda: [f(*tensors)], inputs, symbolic={f"x{i}": d for i, d in symbolic.items()})


def symbols(text: str) -> set[str]:
    """In the types: the word behind a type is its storage."""
    return {
        s
        for part in re.findall(r"[\[{][^\]}]*[\]}]", text.replace("graph {", ""))
        for s in re.findall(r"\bs\d+\b", part)
    }


CASES = {
    "pointwise": (lambda x: x.sin() + 1, [(5, 8)], {0: [0]}, "f32[s0,8]", []),
    "two dimensions": (lambda x: x.exp(), [(5, 9)], {0: [0, 1]}, "f32[s0,s1]", []),
    "equal sizes are one": (lambda x, y: x + y, [(5, 8), (5, 8)], {0: [0], 1: [0]}, "f32[s0,8]", []),
    "broadcast": (lambda x, y: x + y, [(5, 8), (8,)], {0: [0]}, "f32[s0,8]", []),
    "sum": (lambda x: x.sum(1), [(5, 8)], {0: [0]}, "f32[s0]", []),
    "sum over the symbol": (lambda x: x.sum(0), [(5, 8)], {0: [0]}, "f32[8]", []),
    "transpose": (lambda x: x.t(), [(5, 8)], {0: [0]}, "f32[8,s0]{1,8}", []),
    "flatten": (lambda x: x.flatten(), [(5, 8)], {0: [0]}, "f32[8*s0]", []),
    "view": (lambda x: x.view(x.shape[0], 2, 4), [(5, 8)], {0: [0]}, "f32[s0,2,4]", []),
    "view of minus one": (lambda x: x.view(-1, 4), [(5, 8)], {0: [0]}, "f32[2*s0,4]", []),
    "cat": (lambda x: torch.cat([x, x]), [(5, 8)], {0: [0]}, "f32[2*s0,8]", []),
    "matmul": (lambda x, y: x @ y, [(5, 8), (8, 3)], {0: [0]}, "f32[s0,3]", []),
    "linear": (lambda x, y: F.linear(x, y), [(5, 7, 8), (3, 8)], {0: [0, 1]}, "f32[s0,s1,3]", []),
    "softmax": (lambda x: x.softmax(-1), [(5, 9)], {0: [0, 1]}, "f32[s0,s1]", []),
    "layer_norm": (lambda x: F.layer_norm(x, (8,)), [(5, 8)], {0: [0]}, "f32[s0,8]", []),
    "slice": (lambda x: x[:, 1:4], [(5, 8)], {0: [0]}, "f32[s0,3]{8,1}+1", []),
    "slice of the symbol": (lambda x: x[1:], [(5, 8)], {0: [0]}, None, None),
    "arange": (lambda x: torch.arange(x.shape[0]) + x[:, 0], [(5, 8)], {0: [0]}, "f32[s0]", []),
    "zeros": (lambda x: torch.zeros(x.shape[0], 3), [(5, 8)], {0: [0]}, "f32[s0,3]", []),
    "attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q),
        [(3, 2, 5, 8)],
        {0: [0, 2]},
        "f32[s0,2,s1,8]",
        ["1 <= s1"],
    ),
    "embedding": (lambda x, w: F.embedding(x.to(torch.long), w), [(5, 6), (9, 4)], {0: [0, 1]}, "f32[s0,s1,4]", []),
    "expand": (lambda x: x[:, None].expand(-1, 3, 8), [(5, 8)], {0: [0]}, "f32[s0,3,8]{8,0,1}", []),
    "dropout in evaluation": (lambda x: F.dropout(x, 0.5, False), [(5, 8)], {0: [0]}, "f32[s0,8]", []),
}


@pytest.mark.parametrize("name", CASES)
def test_types_of_results(name: str) -> None:
    f, shapes, symbolic, want, guards = CASES[name]
    traced = trace(f, *shapes, symbolic=symbolic)
    if want is not None:
        assert traced.output_types == [want], traced.text
        assert traced.size_guards == guards
    assert symbols(traced.text), traced.text
    assert traced.python_meta_ops == []


def test_a_comparison_is_a_guard() -> None:
    traced = trace(lambda x: x + 1 if x.shape[0] > 3 else x - 1, (5, 8), symbolic={0: [0]})
    assert traced.size_guards == ["3 < s0"]
    assert "add" in traced.text


def test_who_asks_for_the_number_gets_it_for_good() -> None:
    traced = trace(lambda x: x * int(x.shape[0]), (5, 8), symbolic={0: [0]})
    assert not symbols(traced.text)


def test_a_number_to_compute_with() -> None:
    traced = trace(lambda x: x * x.shape[0], (5, 8), symbolic={0: [0]})
    assert "7777777" not in traced.text
    assert "prim.full([], s0, i64, cpu)" in traced.text and "f32[s0,8]" in traced.text


def test_one_is_no_symbol() -> None:
    traced = trace(lambda x: x + 1, (1, 8), symbolic={0: [0, 1]})
    assert traced.output_types == ["f32[1,s0]"]
