"""Operator calls as plain data: what op_db samples send to the dispatcher below autograd, in the form that
flashover._C.infer and flashover._C.decompose take."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

DTYPE_NUMBER = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.complex32: 8, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
    torch.float8_e5m2: 23, torch.float8_e4m3fn: 24, torch.uint16: 27, torch.uint32: 28, torch.uint64: 29,
}  # fmt: skip
NUMBER_DTYPE = {n: d for d, n in DTYPE_NUMBER.items()}
FORMAT = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3}


def tensor_type(t: torch.Tensor) -> tuple:
    wrapped = t.dim() == 0 and torch._C._functions is not None and is_wrapped_number(t)
    return ("tensor", DTYPE_NUMBER[t.dtype], list(t.shape), list(t.stride()), t.storage_offset(), wrapped)


def is_wrapped_number(t: torch.Tensor) -> bool:
    """Seen from promotion: a wrapped f64 number does not make an int8 0-d tensor f64, a plain f64 tensor does."""
    return getattr(t, "_flashover_wrapped", False)


def encode(value: Any, kind: str) -> Any:
    if isinstance(value, torch.Tensor):
        return tensor_type(value)
    if isinstance(value, torch.dtype):
        return ("dtype", DTYPE_NUMBER[value])
    if isinstance(value, torch.layout):
        return ("layout", 0 if value is torch.strided else 1)
    if isinstance(value, torch.memory_format):
        return ("format", FORMAT[value])
    if isinstance(value, (torch.device,)) or (kind.startswith("Device") and isinstance(value, str)):
        device = torch.device(value)
        return ("device", {"cpu": 0, "cuda": 1, "meta": 14}[device.type], -1 if device.index is None else device.index)
    if isinstance(value, torch.Generator):
        return None
    if kind.startswith("float") and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if "ScalarType" in kind and isinstance(value, int):
        return ("dtype", value)
    if "MemoryFormat" in kind and isinstance(value, int):
        return ("format", value)
    if isinstance(value, (list, tuple, torch.Size)):
        inner = kind.replace("List[", "").rstrip("]")
        items = [encode(v, inner) for v in value]
        if inner.startswith("float"):
            items = [float(v) for v in items]
        return items
    if ("int[" in kind or kind.startswith("List[int]")) and isinstance(value, int):
        return [value]
    return value


def positional(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> list[Any]:
    """All arguments in schema order, defaults filled in."""
    out = []
    for i, a in enumerate(func._schema.arguments):
        if i < len(args) and not a.kwarg_only:
            out.append(args[i])
        elif a.name in kwargs:
            out.append(kwargs[a.name])
        else:
            out.append(a.default_value)
    return out


def encoded(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> list[Any]:
    return [encode(v, str(a.type)) for v, a in zip(positional(func, args, kwargs), func._schema.arguments, strict=True)]


def op_name(func: torch._ops.OpOverload) -> str:
    return func._schema.name.replace("::", ".") + "." + (func._overloadname or "default")


def flat_outputs(result: Any) -> list[torch.Tensor] | None:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        out = [flat_outputs(r) for r in result]
        return None if any(o is None for o in out) else list(itertools.chain.from_iterable(out))
    return None


class Recorder(TorchDispatchMode):
    """Calls `visit(func, args, kwargs, run)` for every aten call; run() executes it."""

    def __init__(self, visit: Callable[..., Any]) -> None:
        super().__init__()
        self.visit = visit

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.visit(func, args, kwargs or {})


def layouts(t: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The same values in other memory layouts."""
    yield "as is", t
    if t.dim() >= 2:
        yield "transposed", t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if t.dim() == 4:
        yield "channels_last", t.contiguous(memory_format=torch.channels_last)
    if t.dim() == 5:
        yield "channels_last", t.contiguous(memory_format=torch.channels_last_3d)
    if t.dim() >= 1 and t.numel() > 0:
        wide = t.new_empty([*t.shape[:-1], t.shape[-1] * 2])
        wide[..., ::2] = t
        yield "strided", wide[..., ::2]
        if t.dim() >= 2:
            yield "permuted", t.permute(*range(t.dim())[::-1]).contiguous().permute(*range(t.dim())[::-1])


def relaid(value: Any, name: str) -> Any:
    def one(t: torch.Tensor) -> torch.Tensor:
        for n, v in layouts(t.detach()):
            if n == name:
                return v
        return t.detach()

    return tree_map_only(torch.Tensor, one, value)


LAYOUTS = ["as is", "transposed", "channels_last", "strided", "permuted"]
