"""Programs in children of a process that has torch (support/interpreters.py) are as in interpreters of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import interpreters
import pytest
from interpreters import fresh, python

FACTS = """\
import atexit, os, sys, resource
atexit.register(print, "at the end")
print(__name__, sys.argv[1:], sys.path[0], sys.stdin.read(), os.environ.get("FLASHOVER_LOGS"), os.getcwd())
print("flashover" in sys.modules, os.environ.get("PYTEST_CURRENT_TEST"), sorted(globals()), sys.stdout.encoding)
sys.stderr.write("said")
sys.exit(3)
"""


@pytest.mark.parametrize("how", ["-c", "-m", "file"])
def test_it_is_as_in_an_interpreter(how: str, tmp_path: Path) -> None:
    (tmp_path / "facts.py").write_text(FACTS)
    words = {"-c": ["-c", FACTS], "-m": ["-m", "facts"], "file": [tmp_path / "facts.py"]}[how]
    env = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"} | {"FLASHOVER_LOGS": "graph"}
    one, other = (run(*words, "a", "b", cwd=tmp_path, env=env) for run in (python, fresh))
    assert (one.returncode, one.stderr) == (other.returncode, other.stderr) == (3, "said")
    assert one.stdout.splitlines()[0] == other.stdout.splitlines()[0] and "at the end" in one.stdout
    assert one.stdout == other.stdout


def test_what_fails_is_seen() -> None:
    raised = python("-c", "def f(): 1 / 0\nf()")
    assert raised.returncode == 1 and raised.stderr == fresh("-c", "def f(): 1 / 0\nf()").stderr
    assert python("-c", "import os; os.kill(os.getpid(), 11)").returncode == -signal.SIGSEGV
    assert python("-c", "raise SystemExit('wrong')").stderr == "wrong\n"
    with pytest.raises(subprocess.TimeoutExpired):
        python("-c", "while True: pass", timeout=1)
    assert python("-c", "print(1)").stdout == "1\n"  # another server


def test_what_the_libraries_read_at_once_has_a_server_of_its_own() -> None:
    code = "import torch; print(torch.get_num_threads())"
    assert [python("-c", code, env=os.environ | {"OMP_NUM_THREADS": n}).stdout for n in ("1", "2")] == ["1\n", "2\n"]
    count = len(interpreters._servers)
    python("-c", code, env=os.environ | {"OMP_NUM_THREADS": "2", "FLASHOVER_LOGS": "graph"})
    assert len(interpreters._servers) == count
