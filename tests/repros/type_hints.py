"""A type checker sees through flashover.compile: what it returns has the type of what it was given, as a call and as a
decorator with and without arguments."""

# needs: mypy
import subprocess
import sys
import tempfile
from pathlib import Path

import flashover

PROGRAM = """
import torch, flashover

@flashover.compile(fullgraph=True)
def f(x: torch.Tensor) -> torch.Tensor: return x

@flashover.compile
def g(x: torch.Tensor, k: int = 1) -> int: return k

class Net(torch.nn.Module):
    width: int = 4

reveal_type(flashover.compile(Net()))
reveal_type(flashover.compile(Net(), mode="max-autotune").width)
reveal_type(f(torch.ones(1)))
reveal_type(g(torch.ones(1), k=2))
f("wrong")  # an error
g(torch.ones(1), k="wrong")  # an error
flashover.compile(f, fullgraph=3)  # an error
"""

STUBS = {  # so that not all of torch is looked at
    "__init__": "from torch import nn as nn\nclass Tensor: ...\ndef ones(n: int) -> Tensor: ...\n",
    "nn": "from typing import Any\nclass Module:\n    def __call__(self, *args: Any) -> Any: ...\n",
}

with tempfile.TemporaryDirectory() as folder:
    for name, text in STUBS.items():
        stub = Path(folder) / "torch" / f"{name}.pyi"
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(text)
    file = Path(folder) / "program.py"
    file.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={folder}/cache", str(file)],
        capture_output=True,
        text=True,
        env={"MYPYPATH": f"{folder}:{Path(flashover.__file__).parent.parent}", "PYTHONPATH": ":".join(sys.path)},
    )
lines = [line.partition(": ")[2] for line in done.stdout.splitlines() if "program.py:" in line]
revealed = [line for line in lines if "Revealed" in line]
assert [line.split('"')[1] for line in revealed] == ["program.Net", "int", "torch.Tensor", "int"], done.stdout
errors = [line for line in lines if line.startswith("error")]
assert len(errors) == 3, done.stdout + done.stderr
