"""Syntax that 3.11 does not have: the programs are text, which a version that lacks it does not read. What of it the
interpreter does not know CPython runs, from there on."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import flashover

PROGRAMS = {
    (3, 12): {
        "generic_function": """
            def program(x):
                def add[T](a: T) -> T:
                    return a + 1
                return add(x) * 2
        """,
        "bound_and_packs": """
            def program(x):
                def one[T: int](a: T) -> T:
                    return a + 1
                def other[*Ts, **P](a):
                    return a - 3
                return one(other(x)) * 2
        """,
        "generic_class": """
            def program(x):
                class A[T]:
                    def add(self, a: T):
                        return a + 1
                return A().add(x) * 2
        """,
        "alias": """
            def program(x):
                y = x * 3
                type Number = int
                return y + (1 if Number.__value__ is int else 2)
        """,
        "quotes_in_f_strings": """
            def program(x):
                d = {"n": 3}
                return x + len(f"{d["n"]!r:>{d["n"]}}")
        """,
    },
    (3, 13): {
        "default_of_a_parameter": """
            def program(x):
                def add[T = int](a: T) -> T:
                    return a + 1
                return add(x) * 2
        """,
    },
    (3, 14): {
        "template": """
            def program(x):
                n = 3
                y = x * n
                t = t"{n} and {n + 1:>4}{n!r}"
                return y + sum(i.value for i in t.interpolations) + len(t.strings)
        """,
        "exceptions_without_parentheses": """
            def program(x):
                try:
                    raise KeyError("k")
                except KeyError, ValueError:
                    return x + 1
        """,
        "annotations": """
            def program(x):
                def add(a: float, b: Missing = 1) -> float:
                    return a + b
                from annotationlib import Format, get_annotations
                return add(x) + len(get_annotations(add, format=Format.STRING))
        """,
    },
}
CASES = [
    pytest.param(text, id=name, marks=pytest.mark.skipif(sys.version_info < version, reason=f"syntax of {version}"))
    for version, programs in PROGRAMS.items()
    for name, text in programs.items()
]


def load(text: str, folder: Path) -> Callable[..., Any]:
    path = folder / "program_of_newer_syntax.py"
    path.write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.program


@pytest.mark.parametrize("text", CASES)
def test_results_are_eagers(text: str, tmp_path: Path) -> None:
    program = load(text, tmp_path)
    compiled = flashover.compile(program, backend="eager")
    for k in (1.0, 2.0, 3.0):
        x = torch.full((3,), k)
        assert torch.equal(compiled(x), program(x))
