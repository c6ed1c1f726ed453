"""Shared set-up: reproducible, two threads at most, an own cache folder per run, and the package for the programs
that tests start."""

from __future__ import annotations

import locale
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# For the programs that tests start, however pytest itself was started.
os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "python")])
os.environ.setdefault("FLASHOVER_CACHE_DIR", tempfile.mkdtemp(prefix="flashover-test-cache-"))
# What one test finds out about sizes is nothing to the next one, however the workers of a run come and go.
os.environ.setdefault("FLASHOVER_REMEMBER_SIZES", "0")
# Which way a call goes does not follow from the clock; tests of that turn it on.
os.environ.setdefault("FLASHOVER_RETREAT", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Workers share the cores. OpenMP's threads, which read this when torch is loaded, would spin for the next region where
# another worker could run; that is three quarters of what training takes. A region starts ten times as slowly without,
# and would not be worth several threads in small programs: it is said to start as it does on a machine of one's own.
if "PYTEST_XDIST_WORKER" in os.environ:
    assert "torch" not in sys.modules, "OpenMP's policy is set too late"
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("FLASHOVER_TEST_QUICK_REGIONS", "1")
# FLASHOVER_ISA caps what Flashover itself uses; a machine of that level has no more for the libraries either. They read
# these when torch is loaded.
if os.environ.get("FLASHOVER_ISA"):
    assert "torch" not in sys.modules, "the libraries' levels are set too late"
    levels = runpy.run_path(str(ROOT / "python" / "flashover" / "_library_levels.py"))
    os.environ.update(levels["LIBRARY_LEVELS"][os.environ["FLASHOVER_ISA"]])


if name := os.environ.get("FLASHOVER_TEST_DEVICE"):  # where tensors are made that say nothing of it
    import torch

    torch.set_default_device(name)

if name := os.environ.get("FLASHOVER_TEST_LOCALE"):  # tests/environment/comma_locale.py
    locale.setlocale(locale.LC_ALL, name)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    import torch

    torch.manual_seed(0)
    yield
    assert torch.is_grad_enabled(), "a test left grad mode off"
    assert torch._C._get_mkldnn_enabled(), "a test left oneDNN off"
    assert torch.backends.cudnn.allow_tf32, (
        "a test left cuDNN's precisions changed"
    )  # or raises: some together are an error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`slow` and `gpu` tests run only when asked for by -m (or on a machine with a GPU)."""
    chosen = config.getoption("-m")
    for item in items:
        if "slow" in item.keywords and "slow" not in chosen:
            item.add_marker(pytest.mark.skip(reason="slow: run with -m slow"))
        if "gpu" in item.keywords:
            import torch

            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="gpu: no CUDA device here"))
