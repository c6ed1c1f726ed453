"""A library's functions behind functools.lru_cache, asked by sizes that change."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import flashover

LIBRARY = """
import functools

@functools.lru_cache(16)
def halves(shape, parts=2):
    return [shape[0] * parts, shape[1] // parts]

@functools.lru_cache
def doubled(n):
    return 2 * n
"""


def load(file: Path) -> ModuleType:
    file.parent.mkdir(exist_ok=True)
    file.write_text(LIBRARY)
    spec = importlib.util.spec_from_file_location("library_of_halves", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_librarys_cache_is_not_asked(tmp_path: Path, dynamic: bool | None) -> None:
    library = load(tmp_path / "site-packages" / "halves.py")

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(library.halves(x.shape, parts=2)) * library.doubled(x.shape[0])

    fast = flashover.compile(f, fullgraph=True, dynamic=dynamic)
    for n in (3, 4, 5, 7):
        x = torch.randn(n, 2 * n)
        assert torch.equal(fast(x), f(x))
    assert len(fast.versions) <= 2


def test_the_programs_own_cache_keeps_what_it_computed(tmp_path: Path) -> None:
    own = load(tmp_path / "program" / "halves.py")

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(own.halves(x.shape)) * 2

    fast = flashover.compile(f)
    for n in (3, 4, 3, 5, 4, 5):
        x = torch.randn(n, 2 * n)
        assert torch.equal(fast(x), f(x))
    assert own.halves.cache_info().misses == 3
