"""Captured graphs as torch.fx.GraphModules, for backends written in Python."""

from __future__ import annotations

import itertools
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


def placeholder_names(sources: Sequence[str]) -> list[str]:
    """A name of its own for each input."""
    used: dict[str, None] = {}
    for i, source in enumerate(sources):
        name = _name(source, i)
        while name in used:
            name += "_"
        used[name] = None
    return list(used)


aten = torch.ops.aten
Emit = Callable[..., Any]
# frame/size_expression.h
ARITHMETIC: dict[str, Callable[..., Any]] = {  # of expressions over size symbols
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": torch.sym_min,
    "max": torch.sym_max,
}


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


def size_value(expression: Any, sizes: dict[str, Any], apply: Callable[..., Any]) -> Any:
    """What an expression over size symbols is (frame/size_expression.h), where those are `sizes`."""
    if isinstance(expression, int):
        return expression
    kind, operands = expression
    if kind == "var":
        return sizes[operands]
    value, *others = (size_value(o, sizes, apply) for o in operands)
    for other in others:
        value = apply(ARITHMETIC[kind], value, other)
    return value


class Emitter:
    """Writes the nodes of a described graph (entry/python_graph.h) into a torch.fx.Graph.

    values: by number, the fx nodes (or plain numbers) that stand for values; sizes: by name, those for size symbols.
    """

    def __init__(self, graph: Any, description: dict[str, Any]) -> None:
        self.graph, self.description = graph, description
        self.values: dict[int, Any] = {}
        self.sizes = SizeNodes(self)
        self._weak = set(description["weak"])
        self._numbers: set[Any] = set()  # nodes that compute a number, not a tensor
        self._written = self._written_memory()

    def size(self, expression: Any) -> Any:
        """A size: a number, or the node that computes it."""

        def emit(function: Any, *args: Any) -> Any:
            return self.graph.call_function(function, args)

        value = size_value(expression, self.sizes, emit)
        if not isinstance(value, int):
            self._numbers.add(value)
        return value

    def real(self, arg: Any) -> Any:
        if isinstance(arg, tuple):
            return self.values[arg[0]] if len(arg) == 1 else self.size(arg)
        return [self.real(a) for a in arg] if isinstance(arg, list) else arg

    def is_number(self, value: Any) -> bool:
        return isinstance(value, (bool, int, float, complex)) or value in self._numbers

    def fit(self, argument: Any, given: Any) -> Any:
        """An input that stands for a number is a tensor; some operators take the number itself."""
        value = self.real(given)
        is_tensor = isinstance(given, tuple) and len(given) == 1 and not self.is_number(value)
        if is_tensor and "Tensor" not in str(argument.type):
            return self.graph.call_function(torch.ops.aten.item.default, (value,))
        return value

    def call_of(self, target: Any, args: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positional = [a for a in target._schema.arguments if not a.kwarg_only]
        named = target._schema.arguments[len(positional) :]
        given = list(args[: len(positional)])
        while given and _is_default(positional[len(given) - 1], given[-1]):  # as a person would write it
            given.pop()
        pairs = zip(named, args[len(positional) :], strict=True)
        fitted = tuple(map(self.fit, positional, given))
        return fitted, {s.name: self.fit(s, a) for s, a in pairs if not _is_default(s, a)}

    def functional(self, op: str, args: Sequence[Any], outs: Sequence[int]) -> bool:
        """The writing operator on clones of what it writes."""
        target = _operator(op.removeprefix("functional."))
        call = self.call_of(target, args)
        given = list(call[0])
        written = [i for i, a in enumerate(target._schema.arguments) if a.alias_info and a.alias_info.is_write]
        if any(i >= len(given) or not isinstance(args[i], tuple) for i in written):
            return False
        for i in written:
            given[i] = self.graph.call_function(torch.ops.aten.clone.default, (given[i],))
        made = self.graph.call_function(target, tuple(given), call[1])
        many = len(target._schema.returns) - len([r for r in target._schema.returns if r.alias_info])
        results = [self._item(made, i) for i in range(many)] if many > 1 else [made]
        for value, node in zip(outs, [*results[:many], *(given[i] for i in written)], strict=True):
            self.values[value] = node
        return True

    def full(self, args: Sequence[Any], out: int) -> None:
        """A number that met a tensor."""
        size, number, dtype, device = args
        number = self.real(number)
        if out in self._weak and out not in self.description["outputs"]:
            self.values[out] = number  # operators make a tensor of it that promotes as the number does
            return
        where = {"dtype": dtype, "device": device}
        if not size and self.is_number(number):
            self.values[out] = self.graph.call_function(torch.ops.aten.scalar_tensor.default, (number,), where)
        else:
            self.values[out] = self.graph.call_function(torch.ops.aten.full.default, (self.real(size), number), where)

    def _written_memory(self) -> set[int]:
        found: set[int] = set()
        for op, args, _, _ in self.description["nodes"]:
            if op.startswith(("prim.", "functional.")):
                continue
            for argument, given in zip(_operator(op)._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for one in given if isinstance(given, list) else [given]:
                        if isinstance(one, tuple):
                            found.add(self.description["memory"][one[0]])
        return found

    def operator(self, op: str, args: Sequence[Any], outs: Sequence[int], place: str) -> None:
        target = _operator(op)
        if target is aten.view.default and self.description["memory"][outs[0]] not in self._written:
            target = aten.reshape.default  # the same, also where torch's fake tensors have other strides than real ones
        made = self.graph.call_function(target, *self.call_of(target, args))
        made.meta["stack_trace"] = place
        returns = target._schema.returns
        if len(returns) == 1 and not isinstance(returns[0].type, torch.ListType):
            self.values[outs[0]] = made
        else:
            for i, out in enumerate(outs):
                self.values[out] = self._item(made, i)

    def nodes(self) -> bool:
        """False: an operator is Flashover's own, and has no form in ATen."""
        for op, args, outs, place in self.description["nodes"]:
            first = len(self.graph.nodes)
            if not self.node(op, args, outs, place):
                return False
            for made in itertools.islice(reversed(self.graph.nodes), len(self.graph.nodes) - first):
                made.meta.setdefault("stack_trace", place)
        return True

    def node(self, op: str, args: Sequence[Any], outs: Sequence[int], place: str) -> bool:
        if op.startswith("functional."):
            return self.functional(op, args, outs)
        if op == "prim.full":
            self.full(args, outs[0])
        elif op.startswith("prim."):
            lower = _PRIMS.get(op)
            if lower is None:
                return False
            self.values[outs[0]] = lower(lambda f, *a, **k: self.graph.call_function(f, a, k), *map(self.real, args))
        else:
            self.operator(op, args, outs, place)
        return True

    def _item(self, made: Any, i: int) -> Any:
        return self.graph.call_function(operator.getitem, (made, i))


class SizeNodes(dict[str, Any]):
    """By a size symbol's name, the node that reads it off a tensor; made where it is first asked for, if the graph was
    described with the places of its symbols."""

    def __init__(self, emitter: Emitter) -> None:
        super().__init__()
        self._emitter = emitter

    def __missing__(self, name: str) -> Any:
        value, dim, stride = self._emitter.description["places"][name]
        of = aten.sym_stride.int if stride else aten.sym_size.int
        self[name] = node = self._emitter.graph.call_function(of, (self._emitter.values[value], dim))
        return node


def graph_module(description: dict[str, Any], constants: Sequence[torch.Tensor]) -> Any:
    """The GraphModule; its placeholders are the graph's inputs but for constants, which are attributes.

    None for a graph with operators that are Flashover's own.
    """
    from torch.fx import Graph, GraphModule

    emitter, root = Emitter(Graph(), description), {}
    graph, values = emitter.graph, emitter.values
    waiting = iter(constants)
    names = placeholder_names([source for _, _, source in description["inputs"]])
    places = []
    for i, (value, kind, source) in enumerate(description["inputs"]):
        if kind == _CONSTANT:
            name = f"_constant{len(root)}"
            root[name] = next(waiting)
            places.append((value, name))
            continue
        values[value] = graph.placeholder(names[i])
        values[value].meta["source"] = source
    for value, name in places:
        values[value] = graph.get_attr(name)
    if not emitter.nodes():
        return None
    graph.output(tuple(values[v] for v in description["outputs"]))
    return GraphModule(root, graph)


def make_runner(backend: Callable[..., Any], module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
    """What runs a graph that a user's backend compiled: inputs (constants left out) -> tensors."""
    compiled = backend(module, list(examples))
    if not callable(compiled):
        raise TypeError(f"a backend must return a callable, not {type(compiled).__name__}")
    return compiled


def fake_tensors(like: Sequence[torch.Tensor], devices: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Fake tensors on these devices, shaped as those (on the device "meta") are."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return tuple(
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
            for t, device in zip(like, devices, strict=True)
        )
