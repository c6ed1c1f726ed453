"""A reduced form of benchmarks/injected_faults.py: faults in programs of 150 operators are named by their lines."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import Any

import fault_programs
import pytest
from interpreters import python

import flashover

PACKAGE = Path(flashover.__file__).parent.parent
KINDS: dict[str, dict[str, Any]] = {
    "inference": {},
    "training over symbols": {"training": True, "dynamic": True},
    "breaks and writes": {"breaks": 2, "writes": 2},
}


def run(command: list[object], folder: Path, fault: Any, site: Any) -> subprocess.CompletedProcess[str]:
    env = os.environ | fault_programs.environment(folder, fault, site) | {"PYTHONPATH": str(PACKAGE)}
    return python(*command, env=env, timeout=280)


OPERATORS = [("leaky_relu", "mul"), ("addmm", "baddbmm")]  # kernels, calls of libraries


def program_of(kind: str) -> fault_programs.Program:
    """One that has sites for each fault."""
    seeds = (fault_programs.make_program(n, sites=50, crosscheck=1, **KINDS[kind]) for n in range(10))
    return next(p for p in seeds if all(p.of(*operators) for operators in OPERATORS))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operators", OPERATORS)
def test_crosscheck_names_the_line(kind: str, operators: tuple[str, ...], tmp_path: Path) -> None:
    program = program_of(kind)
    site = random.Random(0).choice(program.of(*operators))
    fault = next(f for f in fault_programs.FAULTS if f.kind == "wrong" and site.operator in f.operators)
    (tmp_path / "program.py").write_text(program.text)
    done = run([tmp_path / "program.py"], tmp_path, fault, site)
    assert done.returncode != 0 and f"program.py:{site.line} in self" in done.stderr, done.stderr[-2000:]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_crosscheck_finds_nothing_in_sound_programs(kind: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program_of(kind).text)
    sound = run([tmp_path / "program.py"], tmp_path, None, None)
    assert sound.returncode == 0 and sound.stdout == "went through\n", sound.stderr[-2000:]


@pytest.mark.timeout(300)
def test_the_minifier_finds_a_crash_in_training_over_symbols(tmp_path: Path) -> None:
    fault = next(f for f in fault_programs.FAULTS if f.kind == "dies")
    program = fault_programs.make_program(2, sites=40, **KINDS["training over symbols"])
    site = random.Random(1).choice(program.of(*fault.operators))
    (tmp_path / "program.py").write_text(program.text)
    output = tmp_path / "repro.py"
    command = ["-m", "flashover", "minify", "-o", output, tmp_path / "program.py"]
    done = run(command, tmp_path, fault, site)
    assert done.returncode == 0 and f"program.py:{site.line} in self" in done.stdout, done.stderr[-2000:]
    text = output.read_text()
    assert text.count("torch.ops.aten.") <= 10 and "dynamic=True" in text
    assert run([output], tmp_path, fault, site).returncode < 0
    assert run([output], tmp_path / "sound", None, None).returncode == 0
