"""Switches: what is compiled, and when."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

import torch

from flashover import _C, backends
from flashover._compile import original_of
from flashover._types import F, Keeping
from flashover.exc import UserError

T = TypeVar("T")  # a function, or a list of functions


def is_compiling() -> bool:
    """True while a call is being captured, as torch.compiler.is_compiling()."""
    return torch.compiler.is_compiling()


@overload
def disable(fn: F, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True) -> F: ...
@overload
def disable(
    fn: None = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True
) -> Keeping: ...
def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True) -> Any:
    """The function as it is: never compiled, and not captured as part of another one. Also a decorator.

    recursive: nor is what it calls. Else those functions are compiled on their own where compiled code calls it.
    wrapping: the result has the name, the documentation and the other attributes of the function.
    """
    if fn is None:
        return lambda f: disable(f, recursive, reason=reason, wrapping=wrapping)
    fn = original_of(fn)
    if not callable(fn):
        raise TypeError(f"flashover.disable needs a callable, not {type(fn).__name__}")
    if isinstance(fn, torch.nn.Module):
        fn.forward = disable(fn.forward, recursive, reason=reason, wrapping=wrapping)
        return fn
    made = _C.Disabled(fn, reason or "", recursive, True)
    if wrapping and inspect.isroutine(fn):
        functools.update_wrapper(made, fn)
    return made


@overload
def skip(fn: F) -> F: ...
@overload
def skip(fn: None = None) -> Keeping: ...
def skip(fn: Any = None) -> Any:
    """The function itself is never compiled, but what it calls is."""
    return disable(fn, recursive=False, reason=None if fn is None else f"{getattr(fn, '__qualname__', fn)} is skipped")


def _nothing(msg: str = "") -> None:
    """Ends the graph here; nothing outside of compiled code."""


graph_break: Callable[..., None] = _C.Disabled(_nothing, "graph_break()")
functools.update_wrapper(graph_break, _nothing)
graph_break.__name__ = graph_break.__qualname__ = "graph_break"


def _marked(how: str, fn: Any) -> Any:
    if isinstance(fn, (list, tuple)):
        return [_marked(how, f) for f in fn]
    if not callable(fn):
        raise TypeError(f"flashover.{how} needs a callable, not {type(fn).__name__}")
    _C.mark(fn, how)
    return fn


def allow_in_graph(fn: T) -> T:
    """Calls of the function are recorded as the operators they run; its Python is not looked into. Also a decorator."""
    return _marked("allow", fn)


def disallow_in_graph(fn: T) -> T:
    """Calls of the function (also of one of torch's own) end the graph. Also a decorator."""
    return _marked("disallow", fn)


def assume_constant_result(fn: T) -> T:
    """The function runs while a call is captured, and its result is taken as it is from then on. Also a decorator."""
    return _marked("constant", fn)


@overload
def run(fn: F) -> F: ...
@overload
def run(fn: None = None) -> Keeping: ...
def run(fn: Any = None) -> Any:
    """Uses what is compiled already and compiles nothing more. Also a decorator."""
    if fn is None:
        return run

    @functools.wraps(fn)
    def cached_only(*args: Any, **kwargs: Any) -> Any:
        with set_stance("eager_on_recompile"):
            return fn(*args, **kwargs)

    return cached_only


class set_stance:
    """What compiled callables do from now on; in a with statement, until its end; as a decorator, while it runs.

    What torch.compiler.set_stance says holds where this says "default"; "force_eager" holds whoever says it.

    default; force_eager: run the originals; eager_on_recompile: compile nothing new; fail_on_recompile: raise instead
    of compiling again; eager_then_compile: the first call of each callable runs eager; aot_eager_then_compile: it is
    captured, and its graph runs operator by operator.
    force_backend, with "default" only: the backend that every compiled callable uses meanwhile, as compile() takes it.
    """

    def __init__(self, stance: str = "default", *, force_backend: Any = None) -> None:
        if force_backend is not None:
            if stance != "default":
                raise UserError(f"force_backend goes with the stance 'default' only, not with {stance!r}")
            backends.resolve(force_backend)
        self._previous, self._now = (_C.stance(), _C.forced_backend()), (stance, force_backend)
        self._set(self._now)

    @staticmethod
    def _set(what: tuple[str, Any]) -> None:
        stance, backend = what
        _C.set_stance(stance)
        _C.force_backend(backend)

    def __call__(self, fn: F) -> F:
        self._set(self._previous)
        stance, backend = self._now

        @functools.wraps(fn)
        def in_stance(*args: Any, **kwargs: Any) -> Any:
            with set_stance(stance, force_backend=backend):
                return fn(*args, **kwargs)

        return cast(F, in_stance)

    def __enter__(self) -> set_stance:
        self._set(self._now)
        return self

    def __exit__(self, *_: object) -> None:
        self._set(self._previous)
