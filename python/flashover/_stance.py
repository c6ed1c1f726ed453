"""Switches: disable, set_stance, is_compiling."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from flashover import _C
from flashover._compile import original_of


def is_compiling() -> bool:
    """True while a call is being captured, as torch.compiler.is_compiling()."""
    return torch.compiler.is_compiling()


def disable(fn: Callable[..., Any] | None = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """The function as it is: never compiled, and not captured as part of another one. Also a decorator."""
    if fn is None:
        return lambda f: disable(f, recursive, reason=reason)
    fn = original_of(fn)
    if not callable(fn):
        raise TypeError(f"flashover.disable needs a callable, not {type(fn).__name__}")
    if isinstance(fn, torch.nn.Module):
        fn.forward = disable(fn.forward, recursive, reason=reason)
        return fn
    made = _C.Disabled(fn, reason or "")
    if inspect.isroutine(fn):
        functools.update_wrapper(made, fn)
    return made


class set_stance:
    """What compiled callables do from now on; in a with statement, until its end.

    default; force_eager: run the originals; eager_on_recompile: compile nothing new; fail_on_recompile: raise instead
    of compiling again; eager_then_compile: the first call of each callable runs eager.
    """

    def __init__(self, stance: str = "default") -> None:
        self._previous = _C.stance()
        _C.set_stance(stance)

    def __enter__(self) -> set_stance:
        return self

    def __exit__(self, *_: object) -> None:
        _C.set_stance(self._previous)
