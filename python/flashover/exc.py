"""Everything Flashover raises."""

from __future__ import annotations


class FlashoverError(RuntimeError):
    """Base of all errors of this package."""


class UserError(FlashoverError):
    """The call has to be changed; the message says how."""


class InvalidBackend(UserError):
    """No backend has this name."""


class InvalidOptions(UserError):
    """A mode or option that does not exist, or of the wrong type."""


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
