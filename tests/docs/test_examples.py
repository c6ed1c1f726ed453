"""The examples run: each checks its own results."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from interpreters import python

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(p.stem for p in (ROOT / "examples").glob("*.py"))
# Not run here: demo is a real model (./x demo), one_model is written out by tools/one_model.py and train_digits is run
# by tests/training, which have tests of their own.
NOT_HERE = {"demo", "one_model", "train_digits"}


@pytest.mark.parametrize("name", [n for n in EXAMPLES if n not in NOT_HERE])
def test_an_example(name: str, tmp_path: Path) -> None:
    if name == "generate_text":
        pytest.importorskip("transformers")
    env = os.environ | {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "2"}
    done = python(ROOT / "examples" / f"{name}.py", cwd=tmp_path, env=env)
    assert done.returncode == 0 and done.stdout, done.stderr[-3000:]


def test_the_page_names_all() -> None:
    named = set(re.findall(r"`examples/(\w+)\.py`", (ROOT / "docs" / "user" / "examples.md").read_text()))
    assert named == set(EXAMPLES) - {"one_model"}
