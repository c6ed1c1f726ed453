"""Everything Flashover raises."""

from __future__ import annotations

import linecache
from collections.abc import Sequence

from flashover._C import FlashoverError, InternalError, UserError
from flashover._reasons import Reason, reason_of, recompile_reason_of
from flashover._stacks import called_from, of_user

__all__ = [
    "BackendCompilerFailed",
    "ConstraintViolationError",  # noqa: F822 -- a size was marked, and the program contradicts it
    "CrosscheckFailed",
    "EagerWarning",
    "ExportError",
    "FlashoverError",  # base of all
    "IgnoredOption",  # a warning: an option of Inductor's has no effect
    "InternalError",  # a fault of Flashover's own
    "InvalidBackend",
    "InvalidOptions",
    "RecompileLimitExceeded",
    "Unsupported",
    "UserError",  # the call has to be changed; the message says how
    "WouldRecompile",
]


class InvalidBackend(UserError):
    """No backend has this name."""


class InvalidOptions(UserError, ValueError):
    """A mode or option that does not exist, of the wrong type or out of its range."""


class IgnoredOption(UserWarning):
    """An option of Inductor's that has no effect here; said once for each. python -m flashover options --torch NAME"""


def _source_of(where: str) -> str:
    """The text of the line file:line; empty where there is none."""
    file, _, line = where.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdigit() else ""


class _WithPlace(FlashoverError):
    """An error that knows its `reason`, the user's line, `where` (file:line), and `stack`, the user's frames that led
    there, the caller first."""

    def __init__(self, message: str, reason: str = "", where: str = "", stack: str = "") -> None:
        FlashoverError.__init__(self, message)  # the other base, where there is one (raised()), wants other arguments
        self.reason = reason or message
        self.where = where
        self.stack = of_user(stack)


class _Explained(_WithPlace):
    """title: what it is, in a few words; explanation: what the reason means; hints: what helps; docs: where there is
    more. All of them are part of str()."""

    @staticmethod
    def _row(reason: str) -> Reason:
        return reason_of(reason)

    def __init__(self, message: str, reason: str = "", where: str = "", stack: str = "") -> None:
        super().__init__(message, reason, where, stack)
        row = self._row(self.reason)
        self.title, self.explanation, self.hints, self.docs = row.title, row.why, list(row.hints), row.docs

    def __str__(self) -> str:
        source = _source_of(self.where)
        lines = [super().__str__(), *([f"    {source}"] if source else [])]
        lines += called_from(self.stack, _source_of)
        return "\n".join([*lines, *help_lines(self._row(self.reason))])


def help_lines(row: Reason) -> list[str]:
    """A reason for people, below what the compiler says."""
    return [
        f"  What it is: {row.title}.", f"  Why: {row.why}", *(f"  - {h}" for h in row.hints), f"  More: {row.docs}"
    ]  # fmt: skip


class Unsupported(_Explained):
    """fullgraph=True, and part of the program cannot be captured."""


class ExportError(FlashoverError):
    """A call that cannot be exported. problems: all that were found, each with the user's line and what helps."""

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = list(problems) or [message]

    @classmethod
    def of(cls, problems: Sequence[str]) -> ExportError:
        several = "" if len(problems) == 1 else f" {len(problems)} problems:"
        return cls(f"cannot be exported:{several}\n" + "\n".join(f"- {p}" for p in problems), problems)


class BackendCompilerFailed(_WithPlace):
    """The backend could not compile a captured graph. inner_exception: what it raised, if it is not Flashover's."""

    inner_exception: BaseException | None = None


class CrosscheckFailed(_WithPlace):
    """The option crosscheck found compiled code that differs from eager beyond rounding.

    operator, where (the user's file:line): the first that does; repro: a script that shows it by itself.
    """

    def __init__(self, message: str, reason: str = "", where: str = "", operator: str = "", repro: str = "") -> None:
        super().__init__(message, reason, where)
        self.operator, self.repro = operator, repro


class RecompileLimitExceeded(_Explained):
    """fullgraph=True, and a callable was compiled as often as recompile_limit allows."""

    @staticmethod
    def _row(reason: str) -> Reason:
        return recompile_reason_of(reason)


class WouldRecompile(_Explained):
    """The stance is fail_on_recompile, and a call does not fit what was compiled; reason: the guard that failed."""

    @staticmethod
    def _row(reason: str) -> Reason:
        return recompile_reason_of(reason)


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


def raised(name: str, reason: str = "") -> type:
    """The class to raise for the one of this name: a class that is torch.compile's, too. Programs catch that by
    torch._dynamo.exc.Unsupported and the like, a name that they may import when they catch it."""
    from flashover._torch_errors import also_torchs

    return also_torchs(globals()[name] if name in globals() else __getattr__(name), reason)


class EagerWarning(RuntimeWarning):
    """Calls of a compiled function, or parts of them, run eager. Said once per function and cause.

    reason: what the compiler says; where: the user's file:line; title, hints, docs: what it is and what helps.
    """

    def __init__(self, message: str, reason: str = "", where: str = "") -> None:
        super().__init__(message)
        limit = "recompile_limit" in reason  # which says what guard failed last
        row = recompile_reason_of(reason) if limit else reason_of(reason)
        self.reason, self.where = reason, where
        self.title, self.hints, self.docs = row.title, list(row.hints), row.docs

    def __str__(self) -> str:
        return f"{super().__str__()} {self.hints[0]} More: {self.docs}" if self.reason else super().__str__()
