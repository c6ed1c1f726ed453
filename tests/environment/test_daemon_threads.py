"""A process ends well while daemon threads run Python code: CPython unwinds such a thread (before 3.14) when it wants
the lock, wherever that is."""

import os
import subprocess
import sys
from pathlib import Path

import flashover

PROGRAM = """
import threading, torch, flashover

def broken(x):
    print(end="")
    return x + 1

def adds(n):
    for i in range(1000):
        n += i

def work():
    while True:
        adds(0)

x = torch.ones(30)
fast = flashover.compile(broken)
for _ in range(3):
    fast(x)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(50):
    fast(x)
"""


def test_a_process_ends_under_daemon_threads(tmp_path: Path) -> None:
    """(Threads that call torch may abort it, as in eager: bindings of torch want the lock in destructors.)"""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    env = os.environ | {"PYTHONPATH": str(Path(flashover.__file__).parent.parent)}
    for _ in range(4):
        done = subprocess.run([sys.executable, file], env=env, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
