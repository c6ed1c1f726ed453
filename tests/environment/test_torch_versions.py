"""The core is built for one torch: beside another one it says so instead of running."""

import pytest
import torch
from interpreters import python

from flashover import _C, _versions

ANOTHER = "2.99.0"


@pytest.mark.parametrize("running", ["2.11.1", "2.11.0+cpu", "2.11.0a0+git123"])
def test_builds_of_one_minor_version_fit(running: str) -> None:
    assert _versions.mismatch("2.11.0", running) is None


@pytest.mark.parametrize("running", ["2.12.0", "2.1.1", "3.11.0"])
def test_another_torch_is_named(running: str) -> None:
    text = _versions.mismatch("2.11.0", running)
    assert text and f"built for torch 2.11, this is torch {running}" in text and "pip install" in text


def test_the_core_that_runs_fits() -> None:
    assert _versions.mismatch(_C.__torch_version__, torch.__version__) is None


def test_import_beside_another_torch_fails() -> None:
    program = f"import torch; torch.__version__ = {ANOTHER!r}; import flashover"
    ran = python("-c", program)
    assert ran.returncode == 1 and "ImportError: flashover's core is built for torch" in ran.stderr, ran.stderr
    assert f"this is torch {ANOTHER}" in ran.stderr
