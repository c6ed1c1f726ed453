"""A slice of fuzz_failures.py: allocations and file calls that fail inside of compiled calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent.parent


def tries(*arguments: str) -> dict[str, Any]:
    """What the generator counted; it found nothing."""
    env = dict(os.environ, OMP_NUM_THREADS="1")
    command = [sys.executable, str(TESTS / "fuzz" / "fuzz_failures.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=env, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    *lines, last = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return {"lines": lines, **last}


@pytest.mark.parametrize("kind", ["new", "malloc", "files", "all"])
def test_failures_at_random_sites(kind: str) -> None:
    counts = tries("--kind", kind, "--start", "11", "--seconds", "8")
    assert counts["tries"] >= 1


def test_every_allocation_of_a_call_that_is_compiled_already() -> None:
    counts = tries("--every", "1", "--program", "training", "--phase", "warm", "--kind", "new", "--seconds", "20")
    assert "right" in str(counts["outcomes"])


def test_each_place_of_a_warm_call_that_allocates() -> None:
    """A place is a call stack, so that also long calls can be tried whole. Two processes share the places."""
    arguments = ("--sites", "2", "--beneath", "--program", "nested_break", "--phase", "warm", "--kind", "malloc")
    counts = tries(*arguments, "--jobs", "2", "--seconds", "100")
    (line,) = counts["lines"]
    assert line["left"] == line["missed"] == 0
    assert 20 < line["places"] < line["calls"]
    assert line["tried"] == line["own"] >= line["places"]
    assert counts["tries"] == line["tried"]


def test_no_memory_from_some_allocation_on() -> None:
    """What is raised meanwhile goes with all that it holds: no tensor of the trace lives on in its traceback."""
    tries("--every", "31", "--program", "views", "--phase", "recompile", "--kind", "all", "--seconds", "20")


def test_no_memory_below_a_function_of_torch_is_not_remembered_as_the_programs_error() -> None:
    """torch makes a RuntimeError of it. The call runs eager then, the next one of the kind is compiled."""
    tries("--every", "29", "--start", "25", "--program", "views", "--phase", "recompile", "--kind", "new")


def test_a_failed_allocation_in_a_compiled_backward_is_a_memory_error() -> None:
    counts = tries("--every", "12", "--program", "training", "--phase", "backward", "--kind", "new", "--seconds", "60")
    assert "raised MemoryError" in str(counts["outcomes"])


def test_guards_that_ran_out_of_memory_are_not_half_believed() -> None:
    """The first allocation of such a call is the guards' own list of what is another object than before."""
    tries("--program", "nested_break", "--phase", "warm", "--kind", "new", "--site", "1")
