"""Children of the test process that never come back into its test runner."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable


def in_child(work: Callable[[], bool], seconds: float = 60) -> None:
    """Forks and calls `work` in the child. Fails where it returns False, raises (the child prints the traceback), dies
    or is not done in time. An exception must not leave the child: it would run the remaining tests a second time."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = 0 if work() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            assert code == 0, {1: "the child was wrong", 2: "the child raised"}.get(code, f"the child ended by {code}")
            return
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")
