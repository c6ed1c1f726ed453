"""Runs a script of programs (tests/cuda/triton_*.py) in a process of its own, with Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def interpret(script: Path, *names: str) -> dict[str, Any]:
    """What the script says of each program (of all of them, without names)."""
    env = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1] / "python"), str(HERE)]),
    }
    r = subprocess.run([sys.executable, str(script), *names], env=env, capture_output=True, text=True, timeout=280)
    lines = [line for line in r.stdout.splitlines() if line.startswith("RESULT")]
    assert lines, r.stderr[-3000:]
    return json.loads(lines[0][len("RESULT") :])
