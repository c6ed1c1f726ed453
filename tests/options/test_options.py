"""Options: a short slice of fuzz_options.py, and what the table refuses (tests/repros/option_sub_plans_hang.py)."""

from __future__ import annotations

import itertools

import fuzz_options as fuzz
import pytest

import flashover

ROWS = list(fuzz.covering_array(fuzz.interesting()))


def test_rows_hold_every_pair() -> None:
    values = fuzz.interesting()
    for (a, of_a), (b, of_b) in itertools.combinations(values.items(), 2):
        seen = {(row[a], row[b]) for row in ROWS}
        assert seen == set(itertools.product(of_a, of_b)), f"{a} and {b}"


def test_there_are_programs_of_every_kind() -> None:
    assert len(fuzz.PROGRAMS) >= 50


@pytest.mark.parametrize("name", fuzz.PROGRAMS)
def test_a_row_for_each_program(name: str) -> None:
    row = ROWS[list(fuzz.PROGRAMS).index(name) % len(ROWS)]
    try:
        assert not (problem := fuzz.check(name, row)), f"{problem}\n{row}"
    finally:
        flashover.reset()


def test_the_comparison_sees_a_wrong_value() -> None:
    eager, exact = fuzz.references("pointwise", fuzz.CALLS)
    assert not fuzz.difference(eager, eager, exact)
    assert fuzz.difference([eager[0] * 1.001, *eager[1:]], eager, exact)
    assert fuzz.difference([t.double() for t in eager], eager, exact)
