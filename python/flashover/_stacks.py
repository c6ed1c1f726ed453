"""Which frames of a stack are the user's."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

# Folders of torch and of this package: frames of files in them are not the user's.
LIBRARIES = tuple(os.path.dirname(file) + os.sep for file in (torch.__file__, __file__))
MOST_CALLERS = 8


def of_user(stack: str) -> list[str]:
    """The user's frames of a stack, "file:line in function", the caller first."""
    return [frame for frame in stack.splitlines() if not frame.startswith(LIBRARIES)]


def called_from(stack: list[str], source_of: Callable[[str], str] = lambda where: "") -> list[str]:
    """Lines that name the callers of the last of these frames, the nearest first, each with its source_of(file:line) if
    there is one. Of many, those far away belong to who called the compiled function (a test runner, a notebook): they
    are counted."""
    callers, lines = stack[-2::-1], []
    for frame in callers[:MOST_CALLERS]:
        lines.append(f"  called from {frame}")
        if source := source_of(frame.partition(" in ")[0]):
            lines.append(f"    {source}")
    further = len(callers) - MOST_CALLERS
    return [*lines, f"  (and {further} callers more)"] if further > 0 else lines
