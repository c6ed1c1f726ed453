"""Everything Flashover raises."""

from __future__ import annotations

import linecache
import os

import torch

from flashover._advice import DOCS, advice
from flashover._C import FlashoverError, InternalError, UserError

__all__ = [
    "BackendCompilerFailed",
    "ConstraintViolationError",  # noqa: F822 -- a size was marked, and the program contradicts it
    "EagerWarning",
    "FlashoverError",  # base of all
    "InternalError",  # a fault of Flashover's own
    "InvalidBackend",
    "InvalidOptions",
    "RecompileLimitExceeded",
    "Unsupported",
    "UserError",  # the call has to be changed; the message says how
]


_LIBRARIES = tuple(os.path.dirname(file) + os.sep for file in (torch.__file__, __file__))  # whose frames are not


class InvalidBackend(UserError):
    """No backend has this name."""


class InvalidOptions(UserError, ValueError):
    """A mode or option that does not exist, of the wrong type or out of its range."""


class _WithPlace(FlashoverError):
    """An error that knows its `reason` and the user's line, `where` (file:line)."""

    def __init__(self, message: str, reason: str = "", where: str = "", stack: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message
        self.where = where
        # The user's frames there, the caller first.
        self.stack = [frame for frame in stack.splitlines() if not frame.startswith(_LIBRARIES)]


class Unsupported(_WithPlace):
    """fullgraph=True, and part of the program cannot be captured.

    reason, where (the user's file:line), stack (the frames that led there); explanation: what the reason means;
    hints: what helps; docs: where there is more.
    """

    def __init__(self, message: str, reason: str = "", where: str = "", stack: str = "") -> None:
        super().__init__(message, reason, where, stack)
        self.explanation, self.hints = advice(self.reason)
        self.docs = DOCS

    def __str__(self) -> str:
        file, _, line = self.where.rpartition(":")
        source = linecache.getline(file, int(line)).strip() if line.isdigit() else ""
        lines = [super().__str__(), *([f"    {source}"] if source else [])]
        lines += [f"  called from {frame}" for frame in self.stack[-2::-1]]
        return "\n".join([*lines, f"  {self.explanation}", *(f"  - {h}" for h in self.hints), f"  More: {self.docs}"])


class BackendCompilerFailed(_WithPlace):
    """The backend could not compile a captured graph."""


class RecompileLimitExceeded(_WithPlace):
    """fullgraph=True, and a callable was compiled as often as recompile_limit allows."""


def __getattr__(name: str) -> type:
    """ConstraintViolationError is torch's, too; where that stands is imported when it is needed only."""
    if name != "ConstraintViolationError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch.fx.experimental import symbolic_shapes

    class ConstraintViolationError(_WithPlace, symbolic_shapes.ConstraintViolationError):
        """A size was marked dynamic, and is one number in the program, or out of the bounds that were given."""

    ConstraintViolationError.__qualname__ = "ConstraintViolationError"
    globals()[name] = ConstraintViolationError
    return ConstraintViolationError


class EagerWarning(RuntimeWarning):
    """Calls of a compiled function, or parts of them, run eager. Said once per function and cause."""
