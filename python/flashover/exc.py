"""Everything Flashover raises."""

from __future__ import annotations

import linecache

from flashover._C import FlashoverError, InternalError, UserError
from flashover._reasons import reason_of
from flashover._stacks import of_user

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
        self.stack = of_user(stack)


def _source_of(where: str) -> str:
    """The text of the line file:line; empty where there is none."""
    file, _, line = where.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdigit() else ""


class Unsupported(_WithPlace):
    """fullgraph=True, and part of the program cannot be captured.

    title: what it is, in a few words; reason: what the compiler says; where (the user's file:line), stack (the frames
    that led there, the caller first); explanation: what the reason means; hints: what helps; docs: where there is more.
    """

    def __init__(self, message: str, reason: str = "", where: str = "", stack: str = "") -> None:
        super().__init__(message, reason, where, stack)
        row = reason_of(self.reason)
        self.title, self.explanation, self.hints, self.docs = row.title, row.why, list(row.hints), row.docs

    def __str__(self) -> str:
        source = _source_of(self.where)
        lines = [super().__str__(), *([f"    {source}"] if source else [])]
        for frame in self.stack[-2::-1]:
            lines.append(f"  called from {frame}")
            if source := _source_of(frame.partition(" in ")[0]):
                lines.append(f"    {source}")
        lines += [f"  What it is: {self.title}.", f"  Why: {self.explanation}"]
        return "\n".join([*lines, *(f"  - {h}" for h in self.hints), f"  More: {self.docs}"])


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
