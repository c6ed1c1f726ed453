"""The frame interpreter against CPython: same result or same exception for every program."""

import frame_object_programs
import frame_programs
import pytest

from flashover import _C


def outcome(run):
    try:
        return ("value", repr(run()))
    except Exception as e:
        return ("raised", type(e).__name__, str(e))


@pytest.mark.parametrize("program", frame_programs.PROGRAMS + frame_object_programs.PROGRAMS, ids=lambda f: f.__name__)
def test_same_as_cpython(program):
    expected = outcome(program)
    try:
        got = ("value", repr(_C._frame.interpret(program)))
    except _C.Declined as e:
        pytest.fail(f"declined: {e}")
    except Exception as e:
        got = ("raised", type(e).__name__, str(e))
    assert got == expected
