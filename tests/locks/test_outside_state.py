"""Objects whose state is not Python's, in compiled code: it sees, and leaves, what eager does (outside_programs.py)."""

from __future__ import annotations

import contextvars
import faulthandler
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import flashover

sys.path.insert(0, str(Path(__file__).parent))
from outside_programs import PROGRAMS

CALLS = 4


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def plain(o: Any) -> Any:
    if isinstance(o, torch.Tensor):
        return [round(v, 4) for v in o.tolist()]
    if isinstance(o, SimpleNamespace):  # a lock and an event
        return o.lock.locked(), o.event.is_set()
    return [plain(e) for e in o] if isinstance(o, (list, tuple)) else o


def seen(make: Callable[[], Any], f: Callable[..., Any]) -> list[Any]:
    def run() -> list[Any]:
        world = make()
        return [plain(f(world, torch.linspace(-1, 1, 4), i)) for i in range(CALLS)]

    return contextvars.copy_context().run(run)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "flashover"])
def test_same_as_eager(name: str, backend: str) -> None:
    make, f = PROGRAMS[name]
    assert seen(make, flashover.compile(f, backend=backend)) == seen(make, f)
