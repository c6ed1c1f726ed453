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


def graph_module(description: dict[str, Any], constants: Sequence[torch.Tensor]) -> Any:
    """The GraphModule; its placeholders are the graph's inputs but for constants, which are attributes."""
    from torch.fx import Graph, GraphModule

    graph, values, root = Graph(), {}, {}
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

    for op, args, outs, place in description["nodes"]:
        if op == "prim.full":  # a number that met a tensor
            size, number, dtype, device = args
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
        schema = target._schema
        positional = [a for a in schema.arguments if not a.kwarg_only]
        made = graph.call_function(
            target,
            tuple(real(a) for a in args[: len(positional)]),
            {
                s.name: real(a)
                for s, a in zip(schema.arguments[len(positional) :], args[len(positional) :], strict=True)
            },
        )
        made.meta["stack_trace"] = place
        returns = schema.returns
        if len(returns) == 1 and not isinstance(returns[0].type, torch.ListType):
            values[outs[0]] = made
        else:
            for i, out in enumerate(outs):
                values[out] = graph.call_function(operator.getitem, (made, i))
    graph.output(tuple(values[v] for v in description["outputs"]))
    return GraphModule(root, graph)


def make_runner(
    backend: Callable[..., Any], description: dict[str, Any], constants: Sequence[torch.Tensor], examples: Sequence[Any]
) -> Callable[..., Any]:
    """What runs a graph that a user's backend compiled: inputs (constants left out) -> tensors."""
    compiled = backend(graph_module(description, constants), list(examples))
    if not callable(compiled):
        raise TypeError(f"a backend must return a callable, not {type(compiled).__name__}")
    return compiled
