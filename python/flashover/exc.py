"""Everything Flashover raises."""

from __future__ import annotations

from flashover._C import FlashoverError, InternalError, UserError

__all__ = [
    "BackendCompilerFailed",
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


class Unsupported(FlashoverError):
    """fullgraph=True, and part of the program cannot be captured. `reason`; `where`: the user's file:line."""

    def __init__(self, message: str, reason: str = "", where: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message
        self.where = where


class BackendCompilerFailed(FlashoverError):
    """The backend could not compile a captured graph."""

    def __init__(self, message: str, reason: str = "", where: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message
        self.where = where


class RecompileLimitExceeded(FlashoverError):
    """fullgraph=True, and a callable was compiled as often as recompile_limit allows."""
