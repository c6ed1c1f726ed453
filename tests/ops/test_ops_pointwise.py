"""Operators that the table calls pointwise give for some rows of their operands these rows of their result."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from op_calls import Recorder, op_name
from op_samples import op_db
from torch.utils._pytree import tree_map_only

from flashover import _C

WRITERS = {name for name, (writes, *_) in _C.op_effects().items() if writes}
POINTWISE = {n for n, *_, pointwise in _C.op_names() if pointwise and n.startswith("aten.")} - WRITERS
# Operators that samples reach in floats, at the least; the others give integers or bools, or are another overload.
LEAST = 90


class Checker:
    """Calls each pointwise operator again with a slice of its operands."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.wrong: list[str] = []

    def visit(self, func: Any, args: tuple, kwargs: dict) -> Any:
        result = func(*args, **kwargs)
        name = op_name(func)
        if name not in POINTWISE or not isinstance(result, torch.Tensor) or not result.dtype.is_floating_point:
            return result
        for dim in {0, result.dim() - 1} if result.dim() else set():
            if result.shape[dim] < 2:
                continue
            behind = result.dim() - dim

            def cut(t: torch.Tensor, behind: int = behind) -> torch.Tensor:
                return t if t.dim() < behind or t.shape[-behind] == 1 else t.narrow(t.dim() - behind, 1, 1)

            want = cut(result)
            cut_args, cut_kwargs = tree_map_only(torch.Tensor, cut, (args, kwargs))
            got = func(*cut_args, **cut_kwargs)
            self.seen.add(name)
            if got.shape != want.shape or not torch.allclose(got.double(), want.double(), 1e-4, 1e-5, equal_nan=True):
                self.wrong.append(f"{name} dim {dim} of {tuple(result.shape)}")
        return result


@pytest.mark.timeout(300)
def test_rows_of_operands_give_rows_of_results() -> None:
    checker = Checker()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            if not op.supports_dtype(torch.float32, "cpu"):
                continue
            for k, sample in enumerate(op.sample_inputs("cpu", torch.float32)):
                if k == 12:
                    break
                try:
                    with Recorder(checker.visit):
                        op(sample.input, *sample.args, **sample.kwargs)
                except Exception:
                    continue  # a sample that eager refuses
    assert not checker.wrong, sorted(set(checker.wrong))
    assert len(checker.seen) >= LEAST, sorted(POINTWISE - checker.seen)
