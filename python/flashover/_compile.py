"""compile(): functions, methods, modules and other callables into compiled ones."""

from __future__ import annotations

import copy
import copyreg
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Unpack, overload

import torch

from flashover import _C, _logs, _reporting, backends
from flashover import options as options_table
from flashover._compiled_module import compile_module
from flashover._compiled_module import original_of as original_module
from flashover._detours import Detour
from flashover._types import C, CompileArguments, Compiled, Decorator, M, P, R

_live: weakref.WeakSet[Any] = weakref.WeakSet()
instead_of_watchers: Callable[[Settings, str], Any] | None = None  # while the minifier watches a program


@dataclass(frozen=True)
class Settings:
    """What compile() was asked for; enough to compile again after pickling."""

    backend: Any = "flashover"
    fullgraph: bool = False
    dynamic: bool | None = None
    mode: str | None = None
    options: Mapping[str, Any] | None = None
    values: dict[str, str] = field(default_factory=dict)  # checked options, as text

    @staticmethod
    def checked(backend: Any, fullgraph: bool, dynamic: bool | None, mode: str | None, options: Any) -> Settings:
        if not isinstance(fullgraph, bool):
            raise TypeError(f"fullgraph must be a bool, not {type(fullgraph).__name__}")
        if dynamic is not None and not isinstance(dynamic, bool):
            raise TypeError(f"dynamic must be a bool or None, not {type(dynamic).__name__}")
        _, custom = backends.resolve(backend)
        if custom is not None and backend != "inductor" and backends.takes_arguments(custom):
            own, others = options_table.for_backend(mode, options)
            if others:
                backend = backends.with_arguments(custom, others)
            return Settings(backend, fullgraph, dynamic, mode, options, options_table.resolve(None, own))
        if backend == "eager":  # takes what there is, as torch's does
            own, _ = options_table.for_backend(mode, options)
            return Settings(backend, fullgraph, dynamic, mode, options, options_table.resolve(None, own))
        return Settings(backend, fullgraph, dynamic, mode, options, options_table.resolve(mode, options))

    def at_once(self) -> Settings:
        """The same for what is looked at: compiled in the first call, and not timed beside eager."""
        return replace(self, values={**self.values, "compile": "now", "retreat": "never"})

    def callable_for(
        self, function: Any, this: Any = None, *, through_call: bool = False, name: str, keep_text: bool = False
    ) -> Any:
        backend, custom = backends.resolve(self.backend)
        watcher = self._watcher_for(name) if self.backend == "flashover" else None
        report = _reporting.collecting()
        made = _C.CompiledCallable(
            function,
            this,
            through_call=through_call,
            name=name,
            backend=backend,
            custom=custom,
            fullgraph=self.fullgraph,
            keep_text=keep_text or (report is not None and report.keep_text),
            dynamic=self.dynamic,
            options=self.values if watcher is None else self.at_once().values,
            guard_filter=(self.options or {}).get("guard_filter_fn"),
            watcher=watcher,
        )
        _live.add(made)
        _follow_torch()
        if report is not None:
            report.add(made)
        return made

    def _watcher_for(self, name: str) -> Any:
        """What sees each graph and each call of it, if anything is to."""
        if instead_of_watchers is not None:
            return instead_of_watchers(self, name)
        first = int(options_table.value(self.values, "crosscheck"))
        if not first:
            return None
        from flashover._crosscheck import Crosscheck  # torch.fx is needed for this only

        return Crosscheck(functools.partial(compile_part, self.values), name, first)

    def compile_method(self, method: Any) -> Any:
        return compile_callable(method, self)


class _Unwatched(Settings):
    """What is compiled to find a fault."""

    def _watcher_for(self, name: str) -> Any:
        return None


def compile_part(values: dict[str, str], module: torch.nn.Module, symbols: bool) -> Any:
    """A part of a graph by these options. symbols: its sizes are such."""
    own = {k: v for k, v in values.items() if k not in ("crosscheck", "dynamic_sources", "static_sources")}
    return compile_module(module, _Unwatched(dynamic=symbols, values={**own, "remember_sizes": "False"}).at_once())


def _trampoline(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _dress(compiled: Any, function: Any) -> Any:
    """Looks like `function` to inspect, functools and people."""
    for name in (*functools.WRAPPER_ASSIGNMENTS, "__defaults__", "__kwdefaults__", "__code__", "__func__", "__self__"):
        if hasattr(function, name):
            setattr(compiled, name, getattr(function, name))
    compiled.__dict__.update(getattr(function, "__dict__", None) or {})
    compiled.__wrapped__ = function
    return compiled


def compile_callable(function: Any, settings: Settings, keep_text: bool = False) -> Any:
    name = getattr(function, "__qualname__", type(function).__name__).removeprefix("<lambda>") or "lambda"
    if inspect.isfunction(function):
        compiled = settings.callable_for(function, name=name, keep_text=keep_text)
    elif inspect.ismethod(function) and inspect.isfunction(function.__func__):
        compiled = settings.callable_for(function.__func__, function.__self__, name=name, keep_text=keep_text)
    elif inspect.isfunction(type(function).__call__):
        compiled = settings.callable_for(None, function, through_call=True, name=name, keep_text=keep_text)
    else:  # partial, builtin, C callable
        compiled = settings.callable_for(_trampoline, function, name=name, keep_text=keep_text)
    compiled._flashover_settings = settings
    return _dress(compiled, function)


def compile_class(cls: type, settings: Settings) -> type:
    """Instances of the class become compiled callables."""
    cls.__call__ = compile_callable(cls.__call__, settings)  # type: ignore[operator]
    return cls


def original_of(target: Any) -> Any:
    if isinstance(target, _C.CompiledCallable):
        return target.__wrapped__
    original = original_module(target)
    return original if original is not target else _without_torch_compile(target)


def _without_torch_compile(target: Any) -> Any:
    """What torch.compile was given, where the target came from it."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    if eval_frame is None:
        return target
    if type(target) is eval_frame.OptimizedModule and not isinstance(target.dynamo_ctx, eval_frame.DisableContext):
        return target._orig_mod
    while inspect.isfunction(target) and target.__code__.co_qualname.endswith("<locals>.compile_wrapper"):
        if not hasattr(target, "_torchdynamo_orig_callable"):
            break
        target = target._torchdynamo_orig_callable
    return target


def compile_anything(target: Any, settings: Settings, keep_text: bool = False) -> Any:
    target = original_of(target)
    if isinstance(target, torch.nn.Module):
        return compile_module(target, settings, keep_text)
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(compile_callable(target.__func__, settings, keep_text))
    if not callable(target):
        raise TypeError(f"flashover.compile needs a function, module or other callable, not {type(target).__name__}")
    if inspect.isclass(target):
        if not any("__call__" in c.__dict__ for c in target.__mro__):
            raise TypeError(f"class {target.__name__} has no __call__ method to compile")
        return compile_class(target, settings)
    return compile_callable(target, settings, keep_text)


@overload
def compile(model: type[C], **arguments: Unpack[CompileArguments]) -> type[C]: ...  # type: ignore[overload-overlap]
@overload
def compile(model: M, **arguments: Unpack[CompileArguments]) -> M: ...  # type: ignore[overload-overlap]
@overload
def compile(model: staticmethod[P, R], **arguments: Unpack[CompileArguments]) -> staticmethod[P, R]: ...  # type: ignore[overload-overlap]
@overload
def compile(model: classmethod[C, P, R], **arguments: Unpack[CompileArguments]) -> classmethod[C, P, R]: ...
@overload
def compile(model: Callable[P, R], **arguments: Unpack[CompileArguments]) -> Compiled[P, R]: ...
@overload
def compile(model: None = None, **arguments: Unpack[CompileArguments]) -> Decorator: ...
def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "flashover",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compiles a function, method, nn.Module or other callable, as torch.compile does; also a decorator.

    Compilation happens on the first call, and again when a call does not match what was compiled.
    fullgraph: raise exc.Unsupported where the program cannot be captured whole, instead of running that call eagerly.
    dynamic: None: a size that changed once is a symbol in the next compile, which serves every size from 1 on;
        True: all sizes are symbols from the first compile on; False: each size is compiled by itself (docs/limits.md).
    backend: "flashover", "eager" (capture only), a registered name, one of torch.compile's ("aot_eager", "inductor"
        ...), or a function of (graph_module, example_inputs).
    mode, options: see flashover.options. disable: return the model as it is.
    """
    settings = Settings.checked(backend, fullgraph, dynamic, mode, options)

    def apply(target: Any) -> Any:
        if target is None:
            raise TypeError("flashover.compile needs a function, module or other callable, not None")
        return target if disable else compile_anything(target, settings)

    return apply if model is None else apply(model)


def reset() -> None:
    """Forgets what is compiled in this process, as torch.compiler.reset and torch._dynamo.reset do. Counters stay."""
    for compiled in list(_live):
        compiled.reset()


_resets: dict[str, Detour] = {}  # torch's, by module


def _follow_torch() -> None:
    """What torch's own functions say of compiled code counts here, too, from the first compile() on."""
    for name in ("torch.compiler", "torch._dynamo"):
        module = sys.modules.get(name)
        if module is not None and name not in _resets and inspect.isfunction(getattr(module, "reset", None)):
            _resets[name] = detour = Detour(module.reset, functools.partial(_reset_both, name))
            detour.take()
    _logs.follow_torch()


def _reset_both(name: str) -> None:
    _resets[name].original()
    reset()


def _rebuild_callable(function: Any, settings: Settings) -> Any:
    return compile_callable(function, settings)


def _reduce_callable(compiled: Any) -> Any:
    """A decorated function is found under its name, like any function."""
    found = sys.modules.get(getattr(compiled, "__module__", None) or "")
    for part in getattr(compiled, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    if found is compiled:
        return compiled.__qualname__
    return _rebuild_callable, (compiled.__wrapped__, compiled._flashover_settings)


def _call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What type(compiled).__call__ says: calls do not take this way, but tracers of other compilers read it."""
    return self.__wrapped__(*args, **kwargs) if torch.compiler.is_compiling() else self(*args, **kwargs)


def _copy(self: Any) -> Any:
    return self


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    """Functions are their own copies; what a method is bound to is copied."""
    wrapped = self.__wrapped__
    copied = copy.deepcopy(wrapped, memo)
    return self if copied is wrapped else _rebuild_callable(copied, self._flashover_settings)


def _aot_compile(self: Any, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Compiles for calls like the example (args, kwargs), without gradients, for good: no guards, no compiler later.

    What it gives is called like the function; save_compiled_function(path) keeps it for flashover.load.
    """
    from flashover._package import AotCompiled

    args, kwargs = inputs
    return AotCompiled(self.__wrapped__, args, kwargs, self._flashover_settings.values)


copyreg.pickle(_C.CompiledCallable, _reduce_callable)
_METHODS = {"__call__": _call, "__copy__": _copy, "__deepcopy__": _deepcopy, "aot_compile": _aot_compile}
for _name, _method in _METHODS.items():
    _C.add_method(_C.CompiledCallable, _name, _method)
