"""The option choices_file: what was decided by measuring is decided by the file in another run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from interpreters import fresh, python

import flashover

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = """
import sys, torch, flashover
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).eval()
x = torch.randn(64, 256)
options = {"max_autotune": True, "choices_file": sys.argv[1], "cache": False}
with torch.no_grad():
    e = flashover.explain(model, options=options)(x)
    torch.testing.assert_close(flashover.compile(model, options=options)(x), model(x), rtol=1e-4, atol=1e-4)
print(e.text("libraries"))
"""


def run_program(file: Path, start: Run = python) -> subprocess.CompletedProcess[str]:
    return start("-c", PROGRAM, file)


def test_the_same_file_gives_the_same_choices(tmp_path: Path) -> None:
    file = tmp_path / "choices"
    first = run_program(file)
    assert first.returncode == 0, first.stderr
    assert "chosen: " in first.stdout
    lines = file.read_text().splitlines()
    assert lines[0] == "flashover choices 1" and lines[1].startswith("torch ")
    kinds = [line.split("\t")[0] for line in lines[2:]]
    assert kinds == ["machine", "libraries"]
    assert run_program(file, fresh).stdout.strip().endswith("chosen by the file: " + lines[3].split("\t")[2])
    # Another choice than the fastest is taken all the same.
    names = [line.rpartition(": ")[0] for line in first.stdout.splitlines() if line.endswith(" us")]
    other = next(name for name in names if name != lines[3].split("\t")[2])
    parts = lines[3].split("\t")
    file.write_text("\n".join([*lines[:3], "\t".join([*parts[:2], other])]) + "\n")
    again = run_program(file)
    assert again.stdout.strip().endswith("chosen by the file: " + other), again.stdout + again.stderr


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    file = tmp_path / "choices"
    assert run_program(file).returncode == 0
    lines = file.read_text().splitlines()
    parts = lines[3].split("\t")
    file.write_text("\n".join([lines[0], "torch 1.0 on a toaster", lines[2], "\t".join([*parts[:2], "none"])]) + "\n")
    found = run_program(file)
    assert found.returncode == 0 and "chosen: " in found.stdout
    assert "were made by torch 1.0 on a toaster" in found.stderr
    assert "the choice of libraries in" in found.stderr and "none" in found.stderr


def test_another_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no choices\n")
    with pytest.raises(Exception, match="no file of choices"):
        flashover.compile(lambda x: x.sin() + 1, options={"choices_file": str(file)}, fullgraph=True)(torch.ones(3))
    assert file.read_text() == "no choices\n"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    f = flashover.compile(lambda x: x.sin() + 1, options={"choices_file": str(tmp_path / "no" / "choices")})
    assert torch.allclose(f(torch.ones(3)), torch.ones(3).sin() + 1)
