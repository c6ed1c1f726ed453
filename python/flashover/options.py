"""Modes and options of compile(). The options table itself is src/base/options.def."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashover import _C
from flashover.exc import InvalidOptions

# mode -> the options it stands for.
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"max_autotune": True, "cuda_graphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
    "lite": {},
}
_TYPES = {"bool": bool, "int": int, "str": str}


def list_modes() -> list[str]:
    return list(MODES)


def list_options() -> dict[str, tuple[str, str, str]]:
    """name -> (type, default, what it does)."""
    return dict(_C.options())


def resolve(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, str]:
    """Checks mode and options; what is asked for, as text."""
    if mode is not None and options is not None:
        raise InvalidOptions("either mode or options can be given, not both at the same time")
    if mode is not None and mode not in MODES:
        raise InvalidOptions(f"unknown mode {mode!r}; there are: {', '.join(MODES)}")
    if options is None:
        options = MODES[mode or "default"]
    elif not isinstance(options, Mapping):
        raise InvalidOptions(f"options must be a mapping of names to values, not {type(options).__name__}")
    table = _C.options()
    values = {}
    for name, value in options.items():
        key = str(name).replace("-", "_")
        if key not in table:
            raise InvalidOptions(f"unknown option {name!r}; there are: {', '.join(sorted(table))}")
        kind = table[key][0]
        if type(value) is not _TYPES[kind]:
            raise InvalidOptions(f"option {name!r} must be {kind}, not {type(value).__name__} {value!r}")
        values[key] = str(value)
    return values
