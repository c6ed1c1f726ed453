"""Functions of other packages whose calls go elsewhere for a while, however they are reached.

The code of the function object is exchanged: who imported it by its name before gets there, too.
"""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Callable
from typing import Any

_lock = threading.Lock()
_known: dict[str, Detour] = {}  # by module and name


def _sign(*args: Any, **kwargs: Any) -> Any:
    """The code that a function on a detour runs. Its globals are those of the function's own module; the line that is
    replaced by a constant of its own (Detour._code) is the key."""
    from flashover._detours import follow

    return follow("<key>", args, kwargs)


def follow(key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _known[key].to(*args, **kwargs)


class Detour:
    """`function`, a plain one without a closure, runs `to` from take() until leave(); `original` is what it ran."""

    def __init__(self, function: types.FunctionType, to: Callable[..., Any]) -> None:
        self.function, self.to = function, to
        self.key = f"{function.__module__}.{function.__qualname__}"
        self._code_before = function.__code__
        made = types.FunctionType(self._code_before, function.__globals__, function.__name__, function.__defaults__)
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__, made.__module__ = function.__qualname__, function.__module__
        self.original: Callable[..., Any] = made

    def _code(self) -> types.CodeType:
        """Named and placed as the function's own: tracers that skip a file by its name skip it as before."""
        before, sign = self._code_before, _sign.__code__
        constants = tuple(self.key if c == "<key>" else c for c in sign.co_consts)
        return sign.replace(
            co_consts=constants,
            co_filename=before.co_filename,
            co_name=before.co_name,
            co_qualname=before.co_qualname,
            co_firstlineno=before.co_firstlineno,
        )

    def is_taken(self) -> bool:
        return self.function.__code__ is not self._code_before

    def take(self) -> None:
        with _lock:
            if not self.is_taken():
                _known[self.key] = self  # it stays there: calls may be on their way when the detour is left
                self.function.__signature__ = inspect.signature(self.function)  # type: ignore[attr-defined]
                self.function.__code__ = self._code()

    def leave(self) -> None:
        with _lock:
            if self.is_taken():
                self.function.__code__ = self._code_before
                del self.function.__signature__  # type: ignore[attr-defined]
