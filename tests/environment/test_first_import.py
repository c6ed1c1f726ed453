"""The first import measures this machine and asks eager: the program's own settings are not those of the numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch
from torch._subclasses import FakeTensorMode
torch.set_default_dtype(torch.{dtype})
with {around}:
    import flashover
print(flashover.compile(lambda x: x.sin() + 1)(torch.zeros(2)))
"""


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("around", ["torch.device('meta')", "torch.inference_mode()", "FakeTensorMode()"])
def test_import_under_settings(dtype: str, around: str, tmp_path: Path) -> None:
    """In a process of its own, with nothing remembered of the machine."""
    environment = dict(os.environ) | {"FLASHOVER_CACHE_DIR": str(tmp_path)}
    program = PROGRAM.format(dtype=dtype, around=around)
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("tensor([1., 1.]"), ran.stdout
