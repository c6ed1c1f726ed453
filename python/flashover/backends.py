"""Backends by name: what turns a captured graph into something that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flashover.exc import InvalidBackend

CompilerFn = Callable[..., Callable[..., Any]]
_BUILTIN = ("eager", "flashover")
_registered: dict[str, tuple[CompilerFn, tuple[str, ...]]] = {}


def register_backend(compiler_fn: CompilerFn | None = None, name: str | None = None, tags: Sequence[str] = ()) -> Any:
    """Makes `compiler_fn(graph_module, example_inputs) -> callable` known under a name; also a decorator."""
    if compiler_fn is None:
        return lambda fn: register_backend(fn, name, tags)
    if not callable(compiler_fn):
        raise TypeError(f"a backend must be callable, not {type(compiler_fn).__name__}")
    name = name or compiler_fn.__name__
    if name in _BUILTIN or name in _registered:
        raise InvalidBackend(f"there is a backend named {name!r} already")
    _registered[name] = (compiler_fn, tuple(tags))
    return compiler_fn


def list_backends(exclude_tags: Sequence[str] = ("debug", "experimental")) -> list[str]:
    """Names that compile(backend=...) takes."""
    exclude = set(exclude_tags or ())
    return sorted([*_BUILTIN, *(n for n, (_, tags) in _registered.items() if not exclude & set(tags))])


def resolve(backend: str | CompilerFn) -> tuple[str, CompilerFn | None]:
    """(name, the user's compiler function or None)."""
    if isinstance(backend, str):
        if backend in _BUILTIN:
            return backend, None
        if backend in _registered:
            return backend, _registered[backend][0]
        raise InvalidBackend(f"unknown backend {backend!r}; there are: {', '.join(list_backends(()))}")
    if not callable(backend):
        raise InvalidBackend(f"a backend is a name or a callable, not {type(backend).__name__}")
    return getattr(backend, "__name__", type(backend).__name__), backend
