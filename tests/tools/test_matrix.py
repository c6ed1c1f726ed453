"""tools/matrix.py: which pairs there are, what each is made of, and what of a run counts as green."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
sys.path.insert(0, str(ROOT / "tools"))
matrix = importlib.import_module("matrix")


def test_pairs_are_what_the_project_allows() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    low, high = re.findall(r'"torch>=(\d+\.\d+),<(\d+\.\d+)"', text)[0]
    minors = [int(t.partition(".")[2]) for t in matrix.TORCHES]
    assert minors == list(range(int(low.partition(".")[2]), int(high.partition(".")[2])))
    assert len(matrix.PAIRS) == len(matrix.PYTHONS) * len(matrix.TORCHES)
    assert matrix.PAIRS["p311t215"] == matrix.Pair("3.11", "2.15")


def test_a_pair_is_installed_with_its_torch_alone() -> None:
    lines = matrix.requirements(matrix.PAIRS["p312t213"])
    assert [line for line in lines if line.startswith("torch")] == ["torch==2.13.0", "torchvision==0.28.0"]
    assert "numpy" in lines and "pytest" in lines


def test_the_daily_pair_is_in_the_matrix() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text().split()
    assert set(lines) == set(matrix.requirements(matrix.PAIRS["p311t211"]))


def test_what_the_matrix_runs_is_there() -> None:
    assert [t for t in matrix.targets() if not (ROOT / t.partition("::")[0]).exists()] == []


@pytest.mark.parametrize(
    ("attributes", "green"),
    [
        ('tests="3" failures="0" errors="0" skipped="1"', True),
        ('tests="3" failures="1" errors="0" skipped="0"', False),
        ('tests="3" failures="0" errors="1" skipped="0"', False),
        ('tests="0" failures="0" errors="0" skipped="0"', False),
    ],
)
def test_green_is_some_passed_and_none_failed(attributes: str, green: bool, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite {attributes}/></testsuites>")
    outcome = matrix.Outcome("p311t211", "3.11", "2.11.0", **matrix.counts(report))
    assert outcome.green == green
    assert ("| green |" in matrix.table([outcome])) == green


def test_a_pair_that_is_not_made_is_not_green() -> None:
    outcome = matrix.Outcome("p313t211", "3.13", "2.11.0", problem="python3.13 is not on PATH")
    assert not outcome.green and "python3.13 is not on PATH" in matrix.table([outcome])
