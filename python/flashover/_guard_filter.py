"""What functions of the option guard_filter_fn get: one entry a guard, with the fields that torch's have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch

_TYPES = {
    "type": "TYPE_MATCH",
    "length": "SEQUENCE_LENGTH",
    "contains": "DICT_CONTAINS",
    "keys": "DICT_KEYS_MATCH",
    "attributes": "HASATTR",
    "tensor": "TENSOR_MATCH",
    "code": "CLOSURE_MATCH",
    "state": "GLOBAL_STATE",
    "aliasing": "DUPLICATE_INPUT",
}


@dataclass(frozen=True)
class OrigGuard:
    """In the place of torch's Guard."""

    name: str
    source: Any  # torch._guards.GuardSource
    guard_type: str

    def create_fn_name(self) -> str:
        return self.guard_type


@dataclass(frozen=True)
class GuardFilterEntry:
    name: str
    has_value: bool
    value: object
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: OrigGuard


def _type_of(kind: str, value: object) -> str:
    if kind == "equals":
        return "CONSTANT_MATCH" if isinstance(value, (bool, int, float, str, type(None))) else "EQUALS_MATCH"
    if kind == "identity":
        if isinstance(value, FunctionType):
            return "CLOSURE_MATCH"
        if isinstance(value, (bool, type(None), type(...))):
            return "CONSTANT_MATCH"
        return "MODULE_MATCH" if isinstance(value, ModuleType) else "ID_MATCH"
    return _TYPES[kind]


def _source(is_global: bool, modules: Sequence[torch.nn.Module]) -> Any:
    from torch._guards import GuardSource

    place = "GLOBAL" if is_global else "LOCAL"
    if not modules:
        return GuardSource[place]
    inbuilt = type(modules[-1]).__module__.startswith(("torch.nn.", "torch.ao."))
    return GuardSource[f"{place}_UNSPECIALIZED_{'BUILTIN_' if inbuilt else ''}NN_MODULE"]


def kept(
    filter_fn: Callable[[Sequence[GuardFilterEntry]], Sequence[bool]],
    rows: Sequence[tuple[str, str, object, bool, Sequence[torch.nn.Module]]],
) -> list[bool]:
    """rows: name, what is guarded, of which object, whether it is a global, the modules that it is in."""
    entries = []
    for name, kind, value, is_global, modules in rows:
        guard_type = _type_of(kind, value)
        guard = OrigGuard(name, _source(is_global, modules), guard_type)
        has_value = bool(name)
        entries.append(
            GuardFilterEntry(name, has_value, value if has_value else None, guard_type, (), is_global, guard)
        )
    answers = list(filter_fn(entries))
    if len(answers) != len(entries) or not all(type(a) is bool for a in answers):
        raise AssertionError(f"guard_filter_fn must return a list of {len(entries)} bools, one a guard")
    return answers
