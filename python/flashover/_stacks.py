"""Which frames of a stack are the user's."""

from __future__ import annotations

import os

import torch

# Folders of torch and of this package: frames of files in them are not the user's.
LIBRARIES = tuple(os.path.dirname(file) + os.sep for file in (torch.__file__, __file__))


def of_user(stack: str) -> list[str]:
    """The user's frames of a stack, "file:line in function", the caller first."""
    return [frame for frame in stack.splitlines() if not frame.startswith(LIBRARIES)]
