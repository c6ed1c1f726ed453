"""Children of the test process that never come back into its test runner."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable

RAISED = 70  # the exit code of a child whose work raised


def forked(work: Callable[[], object]) -> int:
    """The process id of a child that calls `work` and ends: with its result if that is a number, else with 0. An
    exception must not leave the child, which would run the remaining tests a second time: it is printed there."""
    pid = os.fork()
    if pid == 0:
        code = RAISED
        try:
            result = work()
            code = int(result) if isinstance(result, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def in_child(work: Callable[[], bool], seconds: float = 60) -> None:
    """Calls `work` in a child. Fails where it returns False, raises, dies or is not done in time."""
    pid = forked(lambda: int(not work()))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            said = {1: "the child was wrong", RAISED: "the child raised"}
            assert code == 0, said.get(code, f"the child ended by {code}")
            return
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")
