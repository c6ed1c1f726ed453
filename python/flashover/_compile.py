"""compile(): functions, methods, modules and other callables into compiled ones."""

from __future__ import annotations

import copy
import copyreg
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from flashover import _C, backends
from flashover import options as options_table

PREFIX = "_orig_mod."
_live: weakref.WeakSet[Any] = weakref.WeakSet()


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
        backends.resolve(backend)
        return Settings(backend, fullgraph, dynamic, mode, options, options_table.resolve(mode, options))

    def callable_for(
        self, function: Any, this: Any = None, *, through_call: bool = False, name: str, keep_text: bool = False
    ) -> Any:
        backend, custom = backends.resolve(self.backend)
        made = _C.CompiledCallable(
            function,
            this,
            through_call=through_call,
            name=name,
            backend=backend,
            custom=custom,
            fullgraph=self.fullgraph,
            keep_text=keep_text,
            options=self.values,
        )
        _live.add(made)
        return made


class CompiledModule:
    """Mixin of compiled modules: shares the original's attributes, calls through the compiled callable."""

    __slots__ = ()
    _flashover_original: torch.nn.Module
    _flashover_callable: Any
    _flashover_settings: Settings

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Stops here: the class made for a compiled module is nothing to be registered by the model's own classes."""

    @property
    def _orig_mod(self) -> torch.nn.Module:
        return type(self)._flashover_original

    def __reduce_ex__(self, protocol: Any) -> Any:
        return compile_module, (self._orig_mod, type(self)._flashover_settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return compile_module(copy.deepcopy(self._orig_mod, memo), type(self)._flashover_settings)

    def __copy__(self) -> Any:
        return compile_module(copy.copy(self._orig_mod), type(self)._flashover_settings)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if type(self)._flashover_settings.values.get("orig_mod_prefix") == "True":
            kwargs["prefix"] = kwargs.get("prefix", "") + PREFIX
        return self._orig_mod.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Takes keys with and without torch.compile's prefix."""
        if any(k.startswith(PREFIX) for k in state_dict):
            metadata = getattr(state_dict, "_metadata", None)
            state_dict = type(state_dict)((k.removeprefix(PREFIX), v) for k, v in state_dict.items())
            if metadata is not None:
                state_dict._metadata = type(metadata)(
                    (k.removeprefix(PREFIX[:-1]).removeprefix("."), v) for k, v in metadata.items()
                )
        return self._orig_mod.load_state_dict(state_dict, *args, **kwargs)


def compile_module(module: torch.nn.Module, settings: Settings, keep_text: bool = False) -> Any:
    cls = type(module)
    compiled = settings.callable_for(None, module, through_call=True, name=cls.__name__, keep_text=keep_text)
    compiled.__doc__ = cls.__call__.__doc__
    namespace = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__call__": staticmethod(compiled),
        "_flashover_original": module,
        "_flashover_callable": compiled,
        "_flashover_settings": settings,
    }
    made = type.__new__(type(cls), cls.__name__, (CompiledModule, cls), namespace)
    instance = object.__new__(made)
    object.__setattr__(instance, "__dict__", module.__dict__)
    return instance


def _trampoline(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _dress(compiled: Any, function: Any) -> Any:
    """Looks like `function` to inspect, functools and people."""
    for name in (*functools.WRAPPER_ASSIGNMENTS, "__defaults__", "__kwdefaults__"):
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
    if isinstance(target, CompiledModule):
        return target._orig_mod
    if isinstance(target, _C.CompiledCallable):
        return target.__wrapped__
    return _without_torch_compile(target)


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


def compile(
    model: Callable[..., Any] | None = None,
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
    dynamic: accepted; shapes are static for now, each new shape is compiled.
    backend: "flashover", "eager" (capture only), a registered name, or a function of (graph_module, example_inputs).
    mode, options: see flashover.options. disable: return the model as it is.
    """
    settings = Settings.checked(backend, fullgraph, dynamic, mode, options)

    def apply(target: Any) -> Any:
        if target is None:
            raise TypeError("flashover.compile needs a function, module or other callable, not None")
        return target if disable else compile_anything(target, settings)

    return apply if model is None else apply(model)


def reset() -> None:
    """Forgets everything compiled in this process. Counters go on."""
    for compiled in list(_live):
        compiled.reset()


def _rebuild_callable(function: Any, settings: Settings) -> Any:
    return compile_callable(function, settings)


def _reduce_callable(compiled: Any) -> Any:
    return _rebuild_callable, (compiled.__wrapped__, compiled._flashover_settings)


copyreg.pickle(_C.CompiledCallable, _reduce_callable)
