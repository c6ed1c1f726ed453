"""What torch.compile tells of its compilations, told of ours: torch._dynamo.utils.counters, and the callbacks of
torch._dynamo.on_compile_start and on_compile_end. Called by src/entry/torch_told.cpp once torch._dynamo is loaded."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

_numbers = itertools.count()


def _counters() -> Any:
    utils = sys.modules.get("torch._dynamo.utils")
    return getattr(utils, "counters", None)


def graph(calls: int) -> None:
    """A graph of so many calls is about to be compiled."""
    counters = _counters()
    if counters is not None:
        counters["stats"]["unique_graphs"] += 1
        counters["stats"]["calls_captured"] += calls


def graph_break(reason: str) -> None:
    counters = _counters()
    if counters is not None:
        counters["graph_break"][reason] += 1


def frame(compiled: int) -> None:
    """A call, or what follows a break in it, was looked at for the first time."""
    counters = _counters()
    if counters is not None:
        counters["frames"]["total"] += 1
        counters["frames"]["ok"] += compiled


def begin() -> Callable[[], None] | None:
    """Runs the callbacks for a compilation that begins; what runs those for its end, or None: there are none."""
    module = sys.modules.get("torch._dynamo.callback")
    handler = getattr(module, "callback_handler", None)
    if module is None or handler is None or not (handler.start_callbacks or handler.end_callbacks):
        return None
    scope = handler.install_callbacks(module.CallbackTrigger.DYNAMO, f"flashover/{next(_numbers)}")
    scope.__enter__()
    return lambda: scope.__exit__(None, None, None) and None
