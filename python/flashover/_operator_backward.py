"""Backwards of registered operators that look at data (torch.library.register_autograd), as one operator of the graph.

Such a formula cannot be traced: it asks a tensor for its numbers, which groups of rows belong together, say. While a
call is captured, `record` puts one call of flashover_python::backward into the graph in its stead; when the backward
runs, that calls the formula, as eager's would. What the formula finds in its context (saved tensors, attributes) is
written down in a literal beside the tensors, so the plan means the same in another process.
"""

from __future__ import annotations

import ast
import functools
from typing import Any

import torch

NOT_TRACEABLE: set[str] = set()  # names of operators, as their registry has them

_library = torch.library.Library("flashover_python", "DEF")
_library.define("backward(str spec, Tensor[] tensors, SymInt[] sizes) -> Tensor[]", tags=(torch.Tag.cudagraph_unsafe,))


def _parts(backward: Any) -> tuple[Any, str]:
    """What the formula was registered with, and the operator's name."""
    closure = zip(backward.__code__.co_freevars, backward.__closure__ or (), strict=True)
    cells = {name: cell.cell_contents for name, cell in closure}
    return cells["info"], getattr(cells["info"], "_qualname", "")


def _registered(name: str) -> Any:
    from torch._library.custom_ops import OPDEFS

    return OPDEFS.get(name)


def note(backward: Any) -> bool:
    """The formula could not be traced, for it reads data. Whether another capture may succeed."""
    info, name = _parts(backward)
    if not name or name in NOT_TRACEABLE or _registered(name) is not info:
        return False
    NOT_TRACEABLE.add(name)
    return True


def _literal(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(_literal, value))
    if type(value) is dict:
        return all(map(_literal, value)) and all(map(_literal, value.values()))
    return value is None or type(value) in (bool, int, str) or (type(value) is float and abs(value) < float("inf"))


def record(backward: Any, ctx: Any, *grads: Any) -> Any:
    """The gradients, made by one operator; NotImplemented: the formula is traced."""
    info, name = _parts(backward)
    if name not in NOT_TRACEABLE or _registered(name) is not info:
        return NotImplemented
    tensors: list[torch.Tensor] = []
    sizes: list[torch.SymInt] = []

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return ("tensor", len(tensors) - 1)
        if isinstance(value, torch.SymInt):
            sizes.append(value)
            return ("number", len(sizes) - 1)
        if isinstance(value, torch.Size):
            return ("size", [place(n) for n in value])
        if not _literal(value):
            raise NotImplementedError("an operator's backward reads data and has a context that cannot be kept")
        return ("value", value)

    needed = tuple(ctx.needs_input_grad[:-1])
    spec = {
        "operator": name,
        "saved": [place(t) for t in ctx.saved_tensors],
        "attributes": {key: place(value) for key, value in vars(ctx).items()},
        "gradients": [place(g) for g in grads],
        "needed": needed,
    }
    spec["devices"] = [str(t.device) for t in tensors]
    if any(isinstance(n, torch.SymInt) for t in tensors for n in t.shape):
        made = [
            (m.shape, _like_saved(m, ctx.saved_tensors) or _dense(m.shape), m.dtype, m.device)
            for m in _inputs_with_gradients(ctx)
        ]
    else:
        lie = torch.ops.flashover_python.backward(repr(spec), tensors, sizes)  # tells how the gradients lie
        made = [(t.shape, t.stride(), t.dtype, t.device) for t in lie]
    spec["made"] = [
        ([place(n) for n in shape], [place(n) for n in strides], str(dtype), str(device))
        for shape, strides, dtype, device in made
    ]
    gradients = iter(torch.ops.flashover_python.backward(repr(spec), tensors, sizes))
    return (*(next(gradients) if n else None for n in needed), None)


def _inputs_with_gradients(ctx: Any) -> list[Any]:
    """Shape, dtype and device of what the gradients are of, in the order of the operator's arguments."""
    return [node._input_metadata[nr] for node, nr in ctx.next_functions if node is not None]


def _dense(shape: Any) -> list[Any]:
    """Strides of what lies row by row."""
    strides: list[Any] = []
    step: Any = 1
    for n in reversed(shape):
        strides.insert(0, step)
        step = step * n
    return strides


def _like_saved(made: Any, saved: Any) -> tuple[int, ...] | None:
    """Strides of a weight that the formula reads, which its gradient mostly has: over sizes that change it only runs
    with numbers, so how it lies is not asked. Where it lies otherwise it is copied."""
    if any(isinstance(n, torch.SymInt) for n in made.shape):
        return None
    for t in saved:
        if t is None or t.dtype != made.dtype or any(isinstance(n, torch.SymInt) for n in t.shape):
            continue
        by_stride = sorted(range(t.dim()), key=t.stride, reverse=True)
        if list(t.shape) == list(made.shape) and t.permute(by_stride).is_contiguous():
            return t.stride()
    return None


class _Context:
    """What a formula sees of its context."""

    saved_tensors: tuple[Any, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()


@functools.lru_cache(256)
def _read(spec: str) -> dict[str, Any]:
    return ast.literal_eval(spec)


def _value(place: Any, tensors: list[torch.Tensor], sizes: list[Any]) -> Any:
    kind, value = place
    if kind == "size":
        return torch.Size([_value(n, tensors, sizes) for n in value])
    return tensors[value] if kind == "tensor" else sizes[value] if kind == "number" else value


def _numbers(places: list[Any], sizes: list[Any]) -> list[Any]:
    return [_value(place, [], sizes) for place in places]


def _gradients(spec: dict[str, Any], tensors: list[torch.Tensor], sizes: list[Any]) -> list[torch.Tensor]:
    def get(place: Any) -> Any:
        return _value(place, tensors, sizes)

    ctx = _Context()
    for key, value in spec["attributes"].items():
        setattr(ctx, key, get(value))
    ctx.saved_tensors = tuple(get(t) for t in spec["saved"])
    ctx.needs_input_grad = spec["needed"]
    found = _registered(spec["operator"])
    if found is None:
        raise RuntimeError(f"the operator {spec['operator']} is not registered any more")
    result = found._backward_fn(ctx, *(get(g) for g in spec["gradients"]))
    result = result if isinstance(result, tuple) else (result,)
    if len(result) != len(spec["needed"]):
        raise RuntimeError(f"the backward of {spec['operator']} gave {len(result)} gradients")
    wanted = [g for g, n in zip(result, spec["needed"], strict=True) if n]
    if not all(isinstance(g, torch.Tensor) and g.layout == torch.strided for g in wanted):
        raise RuntimeError(f"the backward of {spec['operator']} gave no gradient where one is needed")
    return wanted


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name.removeprefix("torch."))


def _run(spec: str, tensors: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
    read = _read(spec)
    autograd = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    # As the engine would call it: without gradients, which the formula may turn on for what it does by itself.
    with torch._C._ForceDispatchKeyGuard(include, exclude - autograd), torch.no_grad():
        found = _gradients(read, [t.detach() for t in tensors], sizes)
    taken = {t.untyped_storage()._cdata for t in tensors}
    results = []
    for g, (shape_places, stride_places, dtype, device) in zip(found, read["made"], strict=True):
        shape, strides = _numbers(shape_places, sizes), _numbers(stride_places, sizes)
        if list(g.shape) != shape:
            raise RuntimeError(f"the backward of {read['operator']} gave a gradient of {list(g.shape)}, not {shape}")
        own = g.untyped_storage()._cdata
        if list(g.stride()) != strides or str(g.dtype) != dtype or str(g.device) != device or own in taken:
            g = torch.empty_strided(shape, strides, dtype=_dtype(dtype), device=device).copy_(g)
        taken.add(g.untyped_storage()._cdata)
        results.append(g)
    return results


def _shapes(spec: str, tensors: list[torch.Tensor], sizes: list[Any]) -> list[torch.Tensor]:
    read = _read(spec)
    if "made" in read:
        return [
            torch.empty_strided(_numbers(s, sizes), _numbers(st, sizes), dtype=_dtype(d), device="meta")
            for s, st, d, _ in read["made"]
        ]
    zeros = [
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device).zero_()
        for t, device in zip(tensors, read["devices"], strict=True)
    ]
    with torch.no_grad():
        found = _gradients(read, zeros, sizes)
    return [torch.empty_strided(g.shape, g.stride(), dtype=g.dtype, device="meta") for g in found]


_library.impl("backward", _run, "CPU")
_library.impl("backward", _run, "CUDA")
_library.impl("backward", _shapes, "Meta")
