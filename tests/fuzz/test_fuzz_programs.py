"""A fixed slice of the random-program fuzzer; the long mode is `./x fuzz`."""

from __future__ import annotations

import fuzz_programs as fuzz
import pytest

import flashover

SLICES = 8
PROGRAMS_PER_SLICE = 20


@pytest.mark.parametrize("part", range(SLICES))
def test_random_programs(part: int) -> None:
    before = flashover.compile_stats()["graphs"]
    for seed in range(part * PROGRAMS_PER_SLICE, (part + 1) * PROGRAMS_PER_SLICE):
        program = fuzz.generate(seed)
        problem = fuzz.run_one(program, flashover.compile)
        assert not problem, f"seed {seed}: {problem}\n{program.source}"
        flashover.reset()
    # A few depend on data (x[x > 1] = 0) and run eager.
    assert flashover.compile_stats()["graphs"] - before >= PROGRAMS_PER_SLICE * 0.8


def test_the_oracle_sees_a_wrong_value() -> None:
    """The comparison itself: a program that returns something else must be reported."""
    program = fuzz.generate(3)

    def broken(function, **options):
        return lambda *xs: tuple(t * 1.01 + 0.1 if t.is_floating_point() else ~t for t in function(*xs))

    assert fuzz.run_one(program, broken)
