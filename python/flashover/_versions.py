"""Whether the core fits the torch and the Python that run: it is built for one minor version of each."""

from __future__ import annotations

import sys

import torch

REBUILD = "install or build Flashover again with the torch that runs: pip install --no-build-isolation . in its sources"


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def mismatch(built: str, running: str) -> str | None:
    """Between two versions of torch, in words."""
    if minor(built) == minor(running):
        return None
    return f"flashover's core is built for torch {minor(built)}, this is torch {running}; {REBUILD}"


def load_core() -> None:
    """Raises ImportError where the core does not load, or would run on memory laid out for another torch."""
    try:
        from flashover import _C
    except ImportError as error:
        python = ".".join(map(str, sys.version_info[:2]))
        raise ImportError(
            f"flashover's core does not load beside torch {torch.__version__} on Python {python}: {error}; {REBUILD}"
        ) from error
    if wrong := mismatch(_C.__torch_version__, torch.__version__):
        raise ImportError(wrong)


load_core()
