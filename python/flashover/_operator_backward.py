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
_library.define("backward(str spec, Tensor[] tensors) -> Tensor[]", tags=(torch.Tag.cudagraph_unsafe,))


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

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return ("tensor", len(tensors) - 1)
        if isinstance(value, torch.Size):
            return ("size", tuple(value))
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
    made = torch.ops.flashover_python.backward(repr(spec), tensors)  # tells how the gradients lie
    spec["made"] = [(tuple(t.shape), t.stride(), str(t.dtype), str(t.device)) for t in made]
    made = iter(torch.ops.flashover_python.backward(repr(spec), tensors))
    return (*(next(made) if n else None for n in needed), None)


class _Context:
    """What a formula sees of its context."""

    saved_tensors: tuple[Any, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()


@functools.lru_cache(256)
def _read(spec: str) -> dict[str, Any]:
    return ast.literal_eval(spec)


def _gradients(spec: dict[str, Any], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    def get(place: Any) -> Any:
        kind, value = place
        return tensors[value] if kind == "tensor" else torch.Size(value) if kind == "size" else value

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


def _run(spec: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    read = _read(spec)
    autograd = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    # As the engine would call it: without gradients, which the formula may turn on for what it does by itself.
    with torch._C._ForceDispatchKeyGuard(include, exclude - autograd), torch.no_grad():
        found = _gradients(read, [t.detach() for t in tensors])
    taken = {t.untyped_storage()._cdata for t in tensors}
    results = []
    for g, (shape, strides, dtype, device) in zip(found, read["made"], strict=True):
        if tuple(g.shape) != shape:
            raise RuntimeError(f"the backward of {read['operator']} gave a gradient of {tuple(g.shape)}, not {shape}")
        own = g.untyped_storage()._cdata
        if g.stride() != strides or str(g.dtype) != dtype or str(g.device) != device or own in taken:
            g = torch.empty_strided(shape, strides, dtype=_dtype(dtype), device=device).copy_(g)
        taken.add(g.untyped_storage()._cdata)
        results.append(g)
    return results


def _shapes(spec: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    read = _read(spec)
    if "made" in read:
        return [torch.empty_strided(s, st, dtype=_dtype(d), device="meta") for s, st, d, _ in read["made"]]
    zeros = [
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device).zero_()
        for t, device in zip(tensors, read["devices"], strict=True)
    ]
    with torch.no_grad():
        found = _gradients(read, zeros)
    return [torch.empty_strided(g.shape, g.stride(), dtype=g.dtype, device="meta") for g in found]


_library.impl("backward", _run, "CPU")
_library.impl("backward", _run, "CUDA")
_library.impl("backward", _shapes, "Meta")
