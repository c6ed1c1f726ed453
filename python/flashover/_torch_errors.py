"""Errors of ours that are torch.compile's as well, for programs that catch those."""

from __future__ import annotations

import functools
import re

_TORCHS = {
    "BackendCompilerFailed": "BackendCompilerFailed",
    "InvalidBackend": "InvalidBackend",
    "RecompileLimitExceeded": "FailOnRecompileLimitHit",
    "Unsupported": "Unsupported",
    "WouldRecompile": "RecompileError",
}
_OPERATOR_RAISED = re.compile(r"[\w.]+: \w*(Error|Exception): ")


def also_torchs(cls: type, reason: str = "") -> type:
    """The class itself where torch.compile has no such error."""
    name = _TORCHS.get(cls.__name__)
    if name == "Unsupported" and _OPERATOR_RAISED.match(reason):
        name = "TorchRuntimeError"
    return _both(cls, name) if name is not None else cls


@functools.cache
def _both(cls: type, name: str) -> type:
    from torch._dynamo import exc

    # torch's __init__ wants what only its own tracer has: ours stays the one that runs.
    own = {"__init__": cls.__init__, "__module__": cls.__module__, "__doc__": cls.__doc__}  # type: ignore[misc]
    own["__reduce__"] = functools.partialmethod(_reduced, cls)
    for attribute, value in (("real_stack", None), ("gb_type", ""), ("backend_name", "flashover")):
        own[attribute] = value
    own["msg"] = property(str)
    return type(cls.__name__, (cls, getattr(exc, name)), own)


def _reduced(error: BaseException, cls: type) -> tuple[type, tuple[object, ...], dict[str, object]]:
    """Another process may have another torch: there it is ours alone."""
    return cls, error.args, error.__dict__
