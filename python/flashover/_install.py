"""install(): torch.compile, whoever calls it, compiles by Flashover."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from typing import Any, cast

import torch

from flashover import _compile
from flashover._detours import Detour
from flashover._types import F
from flashover.exc import UserError

_OURS = ("inductor", "flashover")  # the backends that stand for "compile it": any other was chosen for what it does
_SWITCHES = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
_SAME = ("fullgraph", "dynamic", "mode", "options", "disable")
_lock = threading.Lock()
_wanted = 0  # how many with statements are open
_installed = False


def _backend_of(arguments: dict[str, Any]) -> Any:
    """What torch.compile would take: torch has a default that can be set from 2.14 on."""
    if arguments.get("backend") is not None:
        return arguments["backend"]
    default = getattr(torch.compiler, "get_default_backend", None)
    return default() if default is not None else "inductor"


def _is_ours(arguments: dict[str, Any]) -> bool:
    backend, options = _backend_of(arguments), arguments.get("options")
    return (
        isinstance(backend, str)
        and backend in _OURS
        and not any(os.environ.get(name) == "1" for name in _SWITCHES)
        and not torch.compiler.is_exporting()  # there torch.compile is nothing, with a warning
        and arguments.get("dynamic_shapes") is None
        and not (isinstance(options, dict) and options.get("use_aoti"))
    )


def _translated(arguments: dict[str, Any]) -> dict[str, Any]:
    """torch.compile's arguments as compile()'s. `name` only names; every callable counts its recompilations by itself
    (`isolate_recompiles`)."""
    ours = {k: arguments[k] for k in _SAME if k in arguments}
    limit = arguments.get("recompile_limit")
    if limit is not None:
        mode = ours.pop("mode", None)
        ours["options"] = {**_options_of(mode, ours.get("options")), "recompile_limit": limit}
    return ours


def _options_of(mode: str | None, options: Any) -> dict[str, Any]:
    from flashover.options import MODES

    return dict(MODES.get(mode or "default", {})) if options is None else dict(options)


@functools.cache
def _torch_compile() -> Detour:
    """Behind wrappers that others put around it (Lightning does)."""
    function = inspect.unwrap(torch.compile)
    if not inspect.isfunction(function) or function.__module__ != "torch" or function.__closure__:
        raise UserError(f"torch.compile was replaced by {function!r}; import flashover before that happens")
    return Detour(function, _compile_by_either)


def _compile_by_either(model: Any = None, **arguments: Any) -> Any:
    by_torch = _torch_compile().original
    if not _is_ours(arguments) or arguments.keys() - inspect.signature(by_torch).parameters.keys():
        return by_torch(model, **arguments)
    return _compile.compile(model, **_translated(arguments))


def _follow() -> None:
    if _installed or _wanted:
        _torch_compile().take()
    else:
        _torch_compile().leave()


def install() -> None:
    """From now on every call of torch.compile in this process compiles by Flashover: as a function or a decorator, by
    nn.Module.compile, in libraries, and under a name that was imported before.

    backend="inductor" (torch's default) becomes Flashover; what names another backend, or an own function, is
    torch.compile's as before, and so are calls in torch.export and torch._dynamo.optimize. What torch.compile made
    earlier stays as it is, and what is made from now on stays compiled by Flashover after uninstall().
    """
    global _installed
    with _lock:
        _installed = True
        _follow()


def uninstall() -> None:
    """torch.compile is torch's own again (but in an open `with replacing_torch_compile()`)."""
    global _installed
    with _lock:
        _installed = False
        _follow()


class replacing_torch_compile:
    """`with flashover.replacing_torch_compile():` as install(), until the end of the block, in all threads. Also a
    decorator."""

    def __enter__(self) -> replacing_torch_compile:
        self._count(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._count(-1)

    @staticmethod
    def _count(more: int) -> None:
        global _wanted
        with _lock:
            _wanted += more
            _follow()

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            with replacing_torch_compile():
                return function(*args, **kwargs)

        return cast(F, replaced)
