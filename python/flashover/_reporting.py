"""Which compiled callables a report is about (_report.py); compile() asks this at each."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

MOST_CALLABLES = 1000  # of a process


@dataclass
class Collected:
    """What compile() made while this was active. Callables that are collected live on, and so do their modules."""

    keep_text: bool
    started: float = field(default_factory=time.time)
    callables: list[Any] = field(default_factory=list)
    left_out: int = 0

    def add(self, compiled: Any) -> None:
        if len(self.callables) < MOST_CALLABLES:
            self.callables.append(compiled)
        else:
            self.left_out += 1


_active: list[Collected] = []


def collecting() -> Collected | None:
    """The collection that what is compiled now belongs to."""
    return _active[-1] if _active else None


def start(keep_text: bool) -> Collected:
    _active.append(Collected(keep_text))
    return _active[-1]


_environment: list[Collected] = []  # at most one: FLASHOVER_REPORT and FLASHOVER_DUMP share it


def of_environment(keep_text: bool) -> Collected:
    """What the whole process makes."""
    if not _environment:
        _environment.append(start(keep_text))
    return _environment[0]


def stop() -> None:
    _active.pop()
