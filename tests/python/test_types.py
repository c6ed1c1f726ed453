"""Type checkers see through the public functions: a user's program is clean under mypy --strict and pyright, and what
is wrong in it is found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flashover

PROGRAM = """
from collections.abc import Callable
import flashover, torch
from flashover import Compiled

@flashover.compile(fullgraph=True, mode="max-autotune")
def f(x: torch.Tensor) -> torch.Tensor:
    return x

@flashover.compile
def g(x: torch.Tensor, k: int = 1, *, scale: float = 1.0) -> int:
    return k

class Net(torch.nn.Module):
    width: int = 4

class Thing:
    @flashover.compile
    def scaled(self, x: torch.Tensor, k: int) -> torch.Tensor:
        return x

    @flashover.compile
    @staticmethod
    def plus(x: torch.Tensor) -> torch.Tensor:
        return x

    @flashover.disable
    def plain(self, k: int) -> int:
        return k

@flashover.disable(reason="slow")
def log(k: int) -> str:
    return str(k)

def takes(function: Callable[[torch.Tensor], torch.Tensor]) -> None: ...

x = torch.ones(1)
reveal_type(flashover.compile(Net()))
reveal_type(flashover.compile(Net(), mode="max-autotune").width)
reveal_type(f(x))
reveal_type(g(x, k=2, scale=0.5))
reveal_type(Thing().scaled(x, 2))
reveal_type(Thing.plus(x))
reveal_type(Thing().plain(3))
reveal_type(log(3))
reveal_type(flashover.explain(g)(x, 2).kernels)
reveal_type(g.stats().calls)
reveal_type(g.versions[0].seconds)
reveal_type(flashover.lower(f, x).compile()(x))
reveal_type(flashover.lower(f, x).cost_analysis().flops)
reveal_type(flashover.live(f).source())
takes(f)
annotated: Compiled[[torch.Tensor], torch.Tensor] = f
f("wrong")  # an error
g(x, k="wrong")  # an error
Thing().scaled(x)  # an error
flashover.compile(f, fullgraph=3)  # an error
flashover.compile(f, full_graph=True)  # an error
flashover.explain(g)("wrong")  # an error
flashover.lower(f, 3)  # an error
log("wrong")  # an error
"""
REVEALED = [
    "Net", "int", "Tensor", "int", "Tensor", "Tensor", "int", "str", "list[dict[str, Any]]", "int", "float", "Tensor",
    "float | None", "str",
]  # fmt: skip
WRONG = [i for i, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# an error")]
STUBS = {  # so that not all of torch is looked at
    "__init__": "from torch import nn as nn\nclass Tensor: ...\nclass device: ...\ndef ones(n: int) -> Tensor: ...\n",
    "nn": "from typing import Any\nclass Module:\n    def __call__(self, *args: Any) -> Any: ...\n",
}
PACKAGE = Path(flashover.__file__).parent.parent


def checker(name: str) -> str:
    beside = shutil.which(name, path=os.path.dirname(sys.executable))
    found = beside or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (requirements-dev.txt)")
    return found


@pytest.fixture
def program(tmp_path: Path) -> Path:
    for name, text in STUBS.items():
        stub = tmp_path / "torch" / f"{name}.pyi"
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(text)
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def plain(revealed: str) -> str:
    """A type without the modules of its names, unions one way."""
    text = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", revealed)
    return re.sub(r"Union\[(\w+), None\]", r"\1 | None", text)


def test_mypy(program: Path) -> None:
    folder = program.parent
    done = subprocess.run(
        [checker("mypy"), "--strict", f"--cache-dir={folder}/cache", "--python-executable", sys.executable, program],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"MYPYPATH": f"{folder}:{PACKAGE}"},
    )
    found = re.findall(r"program\.py:(\d+): (note|error): (.*)", done.stdout)
    revealed = [plain(text.split('"')[1]) for _, kind, text in found if kind == "note" and "Revealed" in text]
    assert revealed == REVEALED, done.stdout + done.stderr
    assert sorted({int(line) for line, kind, _ in found if kind == "error"}) == WRONG, done.stdout


def test_pyright(program: Path) -> None:
    """basedpyright is pyright with a node of its own from PyPI: nothing is downloaded when it runs."""
    folder = program.parent
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(folder), str(PACKAGE)], "include": ["program.py"]})
    )
    done = subprocess.run(
        [checker("basedpyright"), "--outputjson", "-p", str(folder)], capture_output=True, text=True, cwd=folder
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    mine = [d for d in found if d["file"].endswith("program.py")]
    revealed = [plain(d["message"].split('"')[-2]) for d in mine if d["severity"] == "information"]
    assert revealed == REVEALED, done.stdout
    assert sorted({d["range"]["start"]["line"] + 1 for d in mine if d["severity"] == "error"}) == WRONG, done.stdout
