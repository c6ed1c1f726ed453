"""The programs of language_programs.py and live_at_break_programs.py, side effects, identities and tracebacks included:
each gives what it gives in eager, whole where it can be captured, and across graph breaks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import language_programs
import live_at_break_programs
import pytest
import torch
from outcomes import fresh, outcome

import flashover

# What ends a graph, or leaves the call eager, today.
NOT_WHOLE = {
    "exc_torch", "exc_torch_escape",  # a shape error, found by a meta function
    # Instances of classes made inside are returned; a function of functools is renamed.
    "dict_sub", "nt_all", "fn_total_ordering",
    "bytes_ops", "fn_lru", "copy_tensor", "copy_deep_tensor", "logging_warn",
    "time_read", "random_read", "random_of_a_module", "async_decl",
    "s_dict_swap", "s_class_swap", "s_class_attr_inherit",
}  # fmt: skip
if sys.version_info >= (3, 12):
    NOT_WHOLE.add("cls_generic")  # there typing.TypeVar is C and asks for its caller's module


@pytest.mark.parametrize("program", language_programs.PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.timeout(60)
def test_whole(program: Callable[..., Any]) -> None:
    compiled = flashover.compile(program, fullgraph=True, backend="eager")
    with torch.no_grad():
        if program.__name__ in NOT_WHOLE:
            with pytest.raises(flashover.exc.Unsupported):
                compiled(*fresh(0))
            return
        for k in (0, 1, 0):
            assert outcome(compiled, k) == outcome(program, k)


@pytest.mark.parametrize(
    "program", language_programs.PROGRAMS + live_at_break_programs.PROGRAMS, ids=lambda f: f.__name__
)
@pytest.mark.timeout(60)
def test_with_breaks(program: Callable[..., Any]) -> None:
    compiled = flashover.compile(program, backend="eager")
    with torch.no_grad():
        for k in (0, 1, 0):
            assert outcome(compiled, k) == outcome(program, k)
