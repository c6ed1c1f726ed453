"""Warnings, printed text and the stack that a program looks at: as in eager, at each call."""

from __future__ import annotations

import inspect
import sys
import traceback
import typing
import warnings

import pytest
import torch
from comparing import both_ways

import flashover


def look_at_the_stack(x):
    return x + len(inspect.stack()[1].function)


def look_at_the_traceback(x):
    return x + len(traceback.extract_stack()[-2].name)


@pytest.mark.parametrize("program", [look_at_the_stack, look_at_the_traceback])
def test_who_called_is_not_remembered(program):
    compiled = flashover.compile(program, backend="eager")

    def one(f):
        return f(torch.zeros(1))

    def another(f):
        return f(torch.zeros(1))

    for caller in (one, another, one):
        assert torch.equal(caller(compiled), caller(program))


def warns_here(x):
    warnings.warn(f"of {tuple(x.shape)}", DeprecationWarning, stacklevel=1)
    return x + 1


def warns_at_the_caller(x):
    def inner():
        warnings.warn("hello", stacklevel=3)

    inner()
    return x + 1


def warns_between_breaks(x):
    warnings.warn("one", stacklevel=1)
    flashover.graph_break()
    warnings.warn("two")  # noqa: B028
    return x + 1


def warns_nobody(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hello", stacklevel=1)
    return x + 1


def prints_a_traceback(x):
    try:
        raise ValueError("q")
    except ValueError:
        traceback.print_exc(file=sys.stdout)
    return x + 1


@pytest.mark.parametrize("action", ["always", "ignore", "error"])
@pytest.mark.parametrize(
    "program", [warns_here, warns_at_the_caller, warns_between_breaks, warns_nobody, prints_a_traceback]
)
def test_each_call_says_what_it_says(program, action, capsys):
    """Warnings and printed tracebacks: at each call, with the program's lines, under the filters of then."""
    said = []
    for f in (program, flashover.compile(program, backend="eager")):
        for filters in ("always", action, "always"):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter(filters)
                before = list(warnings.filters)
                try:
                    result = f(torch.ones(2)).tolist()
                except Warning as e:
                    result = repr(e)
                assert warnings.filters == before
            warned = [(str(w.message), w.category, w.lineno, w.filename) for w in seen]
            said.append((result, warned, capsys.readouterr()))
    assert said[3:] == said[:3]


def test_warnings_that_the_program_records_behind_a_break() -> None:
    def program() -> list[str]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            flashover.graph_break()
            warnings.warn("now", stacklevel=1)
        return [str(w.message) for w in said]

    both_ways(program, (), ())


def test_filters_set_before_a_warning() -> None:
    def program() -> int:
        warnings.simplefilter("ignore")
        warnings.warn("not said", stacklevel=1)
        return 1

    for call in (program, flashover.compile(program, backend="eager")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert call() == 1


def test_names_of_arguments_at_a_call_whose_arguments_end_the_capture() -> None:
    def program(depth: int) -> int:
        if depth:
            return program(depth - 1)
        return len(traceback.StackSummary.extract(traceback.walk_stack(None), limit=3))

    both_ways(program, (5,), (5,))


def test_what_the_standard_library_prints(capsys) -> None:
    compiled = flashover.compile(lambda: typing.reveal_type("text"), backend="eager")
    for _ in range(2):
        assert compiled() == "text"
        assert capsys.readouterr().err == "Runtime type is 'str'\n"
