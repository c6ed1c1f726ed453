"""Backends by name: what turns a captured graph into something that runs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from flashover._nearest import did_you_mean
from flashover.exc import InvalidBackend, raised

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
        return backend, _of_torch(backend)
    if not callable(backend):
        raise InvalidBackend(f"a backend is a name or a callable, not {type(backend).__name__}")
    return getattr(backend, "__name__", type(backend).__name__), backend


def takes_arguments(backend: CompilerFn) -> bool:
    """Whether a mode and options that are not ours are its own, as torch.compile hands them on."""
    common = sys.modules.get("torch._dynamo.backends.common")
    return not getattr(backend, "compiles_backwards", False) and not (
        common is not None and isinstance(backend, common.AotAutograd)
    )


def with_arguments(backend: CompilerFn, arguments: dict[str, Any]) -> CompilerFn:
    made = functools.partial(backend, **arguments)
    made.__name__ = resolve(backend)[0]  # type: ignore[attr-defined]
    return made


def aot_compilers(backend: CompilerFn) -> tuple[CompilerFn, CompilerFn] | None:
    """(fw_compiler, bw_compiler) of what torch._dynamo.backends.common.aot_autograd made, or of a backend that says so;
    else None."""
    if getattr(backend, "compiles_backwards", False):
        return backend, backend
    common = sys.modules.get("torch._dynamo.backends.common")
    if common is None or not isinstance(backend, common.AotAutograd):
        return None
    forward = backend.kwargs["fw_compiler"]
    backward = backend.kwargs.get("bw_compiler") or forward
    table = backend.kwargs.get("decompositions")
    return _unboxed(_decomposed(forward, table)), _unboxed(_decomposed(backward, table))


def _unboxed(compiler: CompilerFn) -> CompilerFn:
    """What such a compiler returns may take one list, and empty it (functorch.compile.make_boxed_func). A backend as a
    whole is called with its inputs, as torch.compile calls it, whatever mark of that is on it."""

    def compile_unboxed(module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        compiled = compiler(module, examples)
        if not getattr(compiled, "_boxed_call", False):
            return compiled
        return lambda *inputs: compiled(list(inputs))

    return compile_unboxed


def _decomposed(compiler: CompilerFn, decompositions: Any) -> CompilerFn:
    """The compiler behind a pass that writes operators as these decompositions say."""
    if not decompositions:
        return compiler

    def compile_decomposed(module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        from torch.fx.experimental.proxy_tensor import make_fx

        table = decompositions() if callable(decompositions) else decompositions
        return compiler(make_fx(module, table, _allow_non_fake_inputs=True)(*examples), examples)

    return compile_decomposed


def _of_torch(name: str) -> CompilerFn:
    """One of torch.compile's own: they get the program's calls of torch, as from torch.compile."""
    from torch._dynamo.backends.registry import list_backends as torchs
    from torch._dynamo.backends.registry import lookup_backend
    from torch._dynamo.exc import InvalidBackend as Unknown

    try:
        return lookup_backend(name)
    except Unknown:
        known = list_backends(())
        raise raised("InvalidBackend")(
            f"unknown backend {name!r}; {did_you_mean(name, known)}: {', '.join(known)}, "
            f"and of torch.compile's: {', '.join(sorted(set(torchs(())) - set(known)))}"
        ) from None
