"""Switches: what is compiled, and when."""

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
    """The function as it is: never compiled, and not captured as part of another one. Also a decorator.

    recursive: nor is what it calls. Else those functions are compiled on their own where compiled code calls it.
    """
    if fn is None:
        return lambda f: disable(f, recursive, reason=reason)
    fn = original_of(fn)
    if not callable(fn):
        raise TypeError(f"flashover.disable needs a callable, not {type(fn).__name__}")
    if isinstance(fn, torch.nn.Module):
        fn.forward = disable(fn.forward, recursive, reason=reason)
        return fn
    made = _C.Disabled(fn, reason or "", recursive)
    if inspect.isroutine(fn):
        functools.update_wrapper(made, fn)
    return made


def skip(fn: Callable[..., Any] | None = None) -> Any:
    """The function itself is never compiled, but what it calls is."""
    return disable(fn, recursive=False, reason=None if fn is None else f"{getattr(fn, '__qualname__', fn)} is skipped")


def _nothing(msg: str = "") -> None:
    """Ends the graph here; nothing outside of compiled code."""


graph_break = _C.Disabled(_nothing, "graph_break()")
functools.update_wrapper(graph_break, _nothing)
graph_break.__name__ = graph_break.__qualname__ = "graph_break"


def _marked(how: str, fn: Any) -> Any:
    if isinstance(fn, (list, tuple)):
        return [_marked(how, f) for f in fn]
    if not callable(fn):
        raise TypeError(f"flashover.{how} needs a callable, not {type(fn).__name__}")
    _C.mark(fn, how)
    return fn


def allow_in_graph(fn: Any) -> Any:
    """Calls of the function are recorded as the operators they run; its Python is not looked into. Also a decorator."""
    return _marked("allow", fn)


def disallow_in_graph(fn: Any) -> Any:
    """Calls of the function (also of one of torch's own) end the graph. Also a decorator."""
    return _marked("disallow", fn)


def assume_constant_result(fn: Any) -> Any:
    """The function runs while a call is captured, and its result is taken as it is from then on. Also a decorator."""
    return _marked("constant", fn)


def run(fn: Callable[..., Any] | None = None) -> Any:
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
    of compiling again; eager_then_compile: the first call of each callable runs eager.
    """

    def __init__(self, stance: str = "default") -> None:
        self._previous, self._stance = _C.stance(), stance
        _C.set_stance(stance)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        _C.set_stance(self._previous)

        @functools.wraps(fn)
        def in_stance(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self._stance):
                return fn(*args, **kwargs)

        return in_stance

    def __enter__(self) -> set_stance:
        _C.set_stance(self._stance)
        return self

    def __exit__(self, *_: object) -> None:
        _C.set_stance(self._previous)
