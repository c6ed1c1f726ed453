"""Captured graphs as torch.fx.GraphModules, for backends written in Python."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

_CONSTANT = 3  # graph::InputKind::kConstant


def _operator(name: str) -> Any:
    namespace, rest = name.split(".", 1)
    packet, overload = rest.rsplit(".", 1)
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _name(source: str, index: int) -> str:
    name = re.sub(r"\W+", "_", source).strip("_")
    return name if name and not name[0].isdigit() else f"arg{index}_{name}".rstrip("_")


aten = torch.ops.aten
Emit = Callable[..., Any]


def _sliced(emit: Emit, x: Any, starts: list[int], ends: list[int], steps: list[int]) -> Any:
    for d, (start, end, step) in enumerate(zip(starts, ends, steps, strict=True)):
        x = emit(aten.slice.Tensor, x, d, start, end, step)
    return x


def _broadcast(emit: Emit, x: Any, sizes: list[int], dims: list[int]) -> Any:
    for d in range(len(sizes)):
        if d not in dims:
            x = emit(aten.unsqueeze.default, x, d)
    return emit(aten.expand.default, x, sizes)


def _rowmajor(emit: Emit, x: Any) -> Any:
    return emit(aten.clone.default, x, memory_format=torch.contiguous_format)


def _slice_scatter(emit: Emit, x: Any, part: Any, starts: Any, ends: Any, steps: Any) -> Any:
    out = _rowmajor(emit, x)
    emit(aten.copy_.default, _sliced(emit, out, starts, ends, steps), part)
    return out


def _strided_scatter(emit: Emit, x: Any, part: Any, sizes: Any, strides: Any, offset: int) -> Any:
    out = _rowmajor(emit, x)
    emit(aten.copy_.default, emit(aten.as_strided.default, out, sizes, strides, offset), part)
    return out


# Functional graphs say views and copies with operators of Flashover's own; what each means in ATen.
_PRIMS: dict[str, Callable[..., Any]] = {
    "prim.copy": lambda e, x: e(aten.clone.default, x),
    "prim.convert": lambda e, x, dtype: e(aten.to.dtype, x, dtype, False, True),
    "prim.permute": lambda e, x, dims: e(aten.permute.default, x, dims),
    "prim.reshape": lambda e, x, sizes: e(aten.reshape.default, x, sizes),
    "prim.broadcast": _broadcast,
    "prim.slice": _sliced,
    "prim.flip": lambda e, x, dims: e(aten.flip.default, x, dims),
    "prim.diagonal": lambda e, x, offset, a, b: e(aten.diagonal.default, x, offset, a, b),
    "prim.as_strided": lambda e, x, sizes, strides, offset: e(
        aten.as_strided.default, _rowmajor(e, x), sizes, strides, offset
    ),
    "prim.cat": lambda e, parts, dim: e(aten.cat.default, parts, dim),
    "prim.where": lambda e, c, a, b: e(aten.where.self, c, a, b),
    "prim.add": lambda e, a, b: e(aten.add.Tensor, a, b),
    "prim.mul": lambda e, a, b: e(aten.mul.Tensor, a, b),
    "prim.slice_scatter": _slice_scatter,
    "prim.as_strided_scatter": _strided_scatter,
}


def _is_default(argument: Any, value: Any) -> bool:
    default = argument.default_value
    return argument.has_default_value() and type(default) is type(value) and bool(default == value)


def graph_module(description: dict[str, Any], constants: Sequence[torch.Tensor]) -> Any:
    """The GraphModule; its placeholders are the graph's inputs but for constants, which are attributes.

    None for a graph with operators that are Flashover's own.
    """
    from torch.fx import Graph, GraphModule

    graph, values, root = Graph(), {}, {}
    weak = set(description["weak"])
    waiting = iter(constants)
    used: set[str] = set()
    places = []
    for i, (value, kind, source) in enumerate(description["inputs"]):
        if kind == _CONSTANT:
            name = f"_constant{len(root)}"
            root[name] = next(waiting)
            places.append((value, name))
            continue
        name = _name(source, i)
        while name in used:
            name += "_"
        used.add(name)
        values[value] = graph.placeholder(name)
        values[value].meta["source"] = source
    for value, name in places:
        values[value] = graph.get_attr(name)

    def real(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return values[arg[0]]
        return [real(a) for a in arg] if isinstance(arg, list) else arg

    def fit(argument: Any, given: Any) -> Any:
        """An input that stands for a number is a tensor; some operators take the number itself."""
        value = real(given)
        is_node = isinstance(given, tuple) and not isinstance(value, (bool, int, float, complex))
        if is_node and "Tensor" not in str(argument.type):
            return graph.call_function(torch.ops.aten.item.default, (value,))
        return value

    def aten_call(target: Any, args: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positional = [a for a in target._schema.arguments if not a.kwarg_only]
        named = target._schema.arguments[len(positional) :]
        given = list(args[: len(positional)])
        while given and _is_default(positional[len(given) - 1], given[-1]):  # as a person would write it
            given.pop()
        pairs = zip(named, args[len(positional) :], strict=True)
        return tuple(map(fit, positional, given)), {s.name: fit(s, a) for s, a in pairs if not _is_default(s, a)}

    for op, args, outs, place in description["nodes"]:
        if op.startswith("functional."):  # the writing operator on clones of what it writes
            target = _operator(op.removeprefix("functional."))
            call = aten_call(target, args)
            given = list(call[0])
            written = [i for i, a in enumerate(target._schema.arguments) if a.alias_info and a.alias_info.is_write]
            if any(i >= len(given) or not isinstance(args[i], tuple) for i in written):
                return None
            for i in written:
                given[i] = graph.call_function(torch.ops.aten.clone.default, (given[i],))
            made = graph.call_function(target, tuple(given), call[1])
            many = len(target._schema.returns) - len([r for r in target._schema.returns if r.alias_info])
            results = [graph.call_function(operator.getitem, (made, i)) for i in range(many)] if many > 1 else [made]
            for value, node in zip(outs, [*results[:many], *(given[i] for i in written)], strict=True):
                values[value] = node
            continue
        if op.startswith("prim.") and op != "prim.full":
            lower = _PRIMS.get(op)
            if lower is None:
                return None
            values[outs[0]] = lower(lambda f, *a, **k: graph.call_function(f, a, k), *map(real, args))
            continue
        if op == "prim.full":  # a number that met a tensor
            size, number, dtype, device = args
            if outs[0] in weak and outs[0] not in description["outputs"]:
                values[outs[0]] = number  # operators make a tensor of it that promotes as the number does
                continue
            if not size and isinstance(number, (bool, int, float, complex)):
                made = graph.call_function(
                    torch.ops.aten.scalar_tensor.default, (number,), {"dtype": dtype, "device": device}
                )
            else:
                made = graph.call_function(
                    torch.ops.aten.full.default, (size, number), {"dtype": dtype, "device": device}
                )
            values[outs[0]] = made
            continue
        target = _operator(op)
        made = graph.call_function(target, *aten_call(target, args))
        made.meta["stack_trace"] = place
        returns = target._schema.returns
        if len(returns) == 1 and not isinstance(returns[0].type, torch.ListType):
            values[outs[0]] = made
        else:
            for i, out in enumerate(outs):
                values[out] = graph.call_function(operator.getitem, (made, i))
    graph.output(tuple(values[v] for v in description["outputs"]))
    return GraphModule(root, graph)


def make_runner(backend: Callable[..., Any], module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
    """What runs a graph that a user's backend compiled: inputs (constants left out) -> tensors."""
    compiled = backend(module, list(examples))
    if not callable(compiled):
        raise TypeError(f"a backend must return a callable, not {type(compiled).__name__}")
    if getattr(compiled, "_boxed_call", False):  # functorch.compile.make_boxed_func: it takes one list, and empties it
        return lambda *inputs: compiled(list(inputs))
    return compiled


def fake_tensors(like: Sequence[torch.Tensor], devices: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Fake tensors on these devices, shaped as those (on the device "meta") are."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return tuple(
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
            for t, device in zip(like, devices, strict=True)
        )
