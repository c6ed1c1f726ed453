"""The program's calls of torch as a graph of torch.fx: what torch.compile hands to backends that others write.

src/frame/interpret/torch_calls.h takes the calls down while a call is captured.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from flashover._graph_sizes import (
    PlacedGraph,
    Shape,
    SizedGraph,
    add_example_values,
    call_backend,
    fake_mode,
    names_in,
    placeholder_name,
)
from flashover.fx_graph import size_value

_CONSTANTS = {
    int, float, bool, str, complex, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format,
}  # fmt: skip


# fx writes the node of an in-place operator as a statement, whose target must be a name. Of a number it makes another.
_OUT_OF_PLACE = {
    getattr(operator, "i" + name): getattr(operator, name if hasattr(operator, name) else name + "_")
    for name in (
        "add",
        "and",
        "floordiv",
        "lshift",
        "matmul",
        "mod",
        "mul",
        "or",
        "pow",
        "rshift",
        "sub",
        "truediv",
        "xor",
    )
}


@functools.cache
def _views_by_name() -> dict[str, Any]:
    """Attributes of tensors that torch.compile's graphs have as operators (torch 2.15: x.T is aten.numpy_T)."""
    from torch._dynamo.variables import tensor

    return getattr(tensor, "_VIEW_ATTR_TO_ATEN_OP", {})


# A symbol or "", the tensor that has this size in a dimension or the number that is it, the dimension.
Found = tuple[str, Any, int]


class _Unsayable(Exception):
    """A call that a graph of torch.fx cannot hold."""


class Size:
    """An int that changes from call to call: an expression over size symbols (frame/size_expression.h)."""

    def __init__(self, expression: Any) -> None:
        self.expression = expression


class Computed:
    """A number that is computed of others, one of which follows from data."""

    def __init__(self, function: Callable[..., Any], operands: Sequence[Any]) -> None:
        self.function, self.operands = function, operands


class Number:
    """A number that changes from call to call, and is an input of the capture."""

    def __init__(self, index: int, kind: type, path: str) -> None:
        self.index, self.kind, self.path = index, kind, path or f"number_{index}"


def is_node(function: Callable[..., Any]) -> bool:
    """Whether a call of this function of torch's is a node of torch.compile's graphs; else it is looked into."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables import TorchInGraphFunctionVariable

    kind = trace_rules.lookup(function)
    return kind is not None and issubclass(kind, TorchInGraphFunctionVariable)


def _negated(term: Any) -> Any:
    """-term, where that is simpler; else None."""
    if isinstance(term, int):
        return -term if term < 0 else None
    kind, operands = term
    if kind != "*" or not isinstance(operands[0], int) or operands[0] >= 0:
        return None
    factor, *rest = operands
    if factor == -1:
        return rest[0] if len(rest) == 1 else ("*", rest)
    return ("*", [-factor, *rest])


def recurrent_networks_are_handed_out() -> bool:
    """Torch.compile hands them to no backend, and AOTAutograd fails on what oneDNN makes of them."""
    import torch._dynamo.config

    return bool(torch._dynamo.config.allow_rnn)


class _Builder:
    def __init__(self, inputs: Iterable[tuple[torch.Tensor, int, str]], grad: bool, canonical: dict[str, Any]) -> None:
        self.graph = fx.Graph()
        self.canonical = canonical  # what symbols of sizes were found to be
        self.symbols: dict[str, fx.Node] = {}  # placeholders
        self.numbers: dict[int, tuple[fx.Node, type, Any]] = {}  # by input of the capture: placeholder, value
        self.computed: dict[Any, Any] = {}
        self.grad = self.grad_before = grad
        self.nodes: dict[int, fx.Node] = {}  # by the tensor that the program has; the calls keep them alive
        self.places: list[tuple[fx.Node, int]] = []  # placeholders, and which input of the capture each is
        self.items: list[fx.Node] = []
        # Sizes that follow from data, by symbol: what has one, and the dimension; or a number.
        self.found: dict[str, tuple[fx.Node, int] | fx.Node] = {}
        names: set[str] = set()
        for tensor, index, path in inputs:
            if id(tensor) not in self.nodes:
                name = placeholder_name(path)
                if name in names:  # of keys without a text of their own
                    name += f"{index}_"
                names.add(name)
                node = self.graph.placeholder(name)
                node.meta["source"] = path
                self.nodes[id(tensor)] = node
                self.places.append((node, index))

    def lifted(self, name: str) -> fx.Node:
        """A placeholder before the others."""
        with self.graph.inserting_before(next(iter(self.graph.nodes), None)):
            return self.graph.placeholder(name)

    def size(self, expression: Any) -> Any:
        names = names_in(expression)
        symbols = {n: self.canonical[n] for n in names if n in self.canonical}
        for name in names:
            other = symbols.get(name, ("var", name))
            if name in self.found:
                symbols[name] = self.size_of_data(name)
            elif name.startswith("u"):
                raise _Unsayable  # no result of a call has it
            elif other != ("var", name):
                symbols[name] = self.size(other)
            else:
                if name not in self.symbols:
                    self.symbols[name] = self.lifted(name)
                symbols[name] = self.symbols[name]
        return self.computed_size(expression, symbols)

    def size_of_data(self, name: str) -> fx.Node:
        found = self.found[name]
        if isinstance(found, tuple):
            node, dim = found
            with self.graph.inserting_after(node):
                found = self.found[name] = self.graph.call_method("size", (node, dim))
        return found

    def computed_size(self, expression: Any, symbols: dict[str, Any]) -> Any:
        """By differences where the program will have written some: 16 - s0."""
        if isinstance(expression, int) or expression[0] != "+":
            return size_value(expression, symbols, self.arithmetic)
        added, taken = [], []
        for term in expression[1]:
            negative = _negated(term)
            (added if negative is None else taken).append(term if negative is None else negative)
        value, *others = [self.computed_size(t, symbols) for t in added] or [0]
        for other in others:
            value = self.arithmetic(operator.add, value, other)
        for other in taken:
            value = self.arithmetic(operator.sub, value, self.computed_size(other, symbols))
        return value

    def arithmetic(self, function: Callable[..., Any], *of: Any) -> Any:
        if all(isinstance(o, int) for o in of):
            return function(*of)
        if (function, of) not in self.computed:
            self.computed[function, of] = self.graph.call_function(function, of)
        return self.computed[function, of]

    def number(self, given: Number) -> Any:
        """Floats are handed over as tensors, as torch.compile does."""
        if given.index not in self.numbers:
            node = value = self.lifted(placeholder_name(given.path))
            if given.kind is float:
                value = self.graph.call_method("item", (node,))
            self.numbers[given.index] = node, given.kind, value
        return self.numbers[given.index][2]

    def argument(self, given: Any) -> Any:
        if isinstance(given, Size):
            return self.size(given.expression)
        if isinstance(given, Number):
            return self.number(given)
        if isinstance(given, Computed):
            return self.arithmetic(given.function, *map(self.argument, given.operands))
        if type(given) in (int, float) and id(given) in self.nodes:
            return self.nodes[id(given)]
        if isinstance(given, torch.Tensor):
            if id(given) not in self.nodes:
                raise _Unsayable
            return self.nodes[id(given)]
        if type(given) in (tuple, list, torch.Size):
            items = [self.argument(item) for item in given]
            return items if type(given) is list else tuple(items)
        if type(given) is dict:
            return {self.argument(k): self.argument(v) for k, v in given.items()}
        if type(given) is slice:
            return slice(*map(self.argument, (given.start, given.stop, given.step)))
        if type(given) not in _CONSTANTS:
            raise _Unsayable
        return given

    def set_grad(self, grad: bool) -> None:
        if grad != self.grad:
            self.graph.call_function(torch._C._set_grad_enabled, (grad,))
            self.grad = grad

    def is_known(self, result: Any) -> bool:
        """Only tensors that the program has already, which need no node."""
        if isinstance(result, (tuple, list, dict)):
            items = result.values() if isinstance(result, dict) else result
            return all(self.is_known(item) for item in items)
        return not isinstance(result, torch.Tensor) or id(result) in self.nodes

    def call(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        ran: bool,
        place: str,
        found: Sequence[Found],
        copies: Sequence[torch.Tensor],
    ) -> None:
        if not ran and (function is getattr or isinstance(result, dict)) and self.is_known(result):
            return
        if function is getattr and args[1] in _views_by_name():
            function, args = _views_by_name()[args[1]], args[:1]
        if function in _OUT_OF_PLACE and not isinstance(args[0], torch.Tensor):
            function = _OUT_OF_PLACE[function]
        method = None
        if isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType)):
            method = function.__name__
        elif isinstance(function, types.BuiltinFunctionType) and isinstance(function.__self__, torch.Tensor):
            method, args = function.__name__, (function.__self__, *args)
        elif isinstance(function, types.FunctionType) and function.__module__ == "torch._tensor":
            method = function.__name__
        if method in ("item", "tolist") or function in (int, float):
            return self.read(args[0], function if function in (int, float) else None, result, found, copies)
        given = tuple(map(self.argument, args))
        named = {k: self.argument(v) for k, v in kwargs.items()}
        if method is not None:
            if not hasattr(torch.Tensor, method):
                raise _Unsayable
            node = self.graph.call_method(method, given, named)
        else:
            node = self.graph.call_function(function, given, named)
        node.meta["stack_trace"] = place
        self.bind(node, result)
        for name, of, dim in found:
            if name and isinstance(of, torch.Tensor) and id(of) in self.nodes:
                self.found.setdefault(name, (self.nodes[id(of)], dim))

    def read(
        self, tensor: Any, kind: type | None, result: Any, found: Sequence[Found], copies: Sequence[torch.Tensor]
    ) -> None:
        """The numbers that a tensor holds: as such, and as the tensors that they are handed out in."""
        numbers = {id(number): name for name, number, _ in found}

        def part(node: fx.Node, of: Any) -> None:
            if isinstance(of, list):
                for i, item in enumerate(of):
                    self.items.append(self.graph.call_function(operator.getitem, (node, i)))
                    part(self.items[-1], item)
            elif id(of) in numbers:
                self.items.append(item := self.graph.call_method("item", (node,)))
                if kind is not None:
                    convert = torch.sym_int if kind is int else torch.sym_float
                    self.items.append(item := self.graph.call_function(convert, (item,)))
                self.nodes[id(of)] = item
                if name := numbers[id(of)]:
                    self.found.setdefault(name, item)

        node = self.argument(tensor)
        part(node, result)
        for copy in copies:
            if id(copy) not in self.nodes:
                self.items.append(self.graph.call_method("detach", (node,)))
                self.items.append(self.graph.call_method("clone", (self.items[-1],)))
                self.nodes[id(copy)] = self.items[-1]

    def check(self, relation: Callable[..., Any], a: Any, b: Any) -> None:
        """What was taken for granted of sizes that follow from data: for who compiles the graph, and for who runs it
        (AOTAutograd drops the first)."""
        holds = self.graph.call_function(relation, (self.size(a), self.size(b)))
        self.graph.call_function(torch._check, (holds,))
        words = "a number that follows from data is not what the graph takes it for"
        self.graph.call_function(torch.ops.aten._assert_scalar.default, (holds, words))

    def bind(self, node: fx.Node, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self.nodes.setdefault(id(result), node)
        elif isinstance(result, (tuple, list)):
            for i, item in enumerate(result):
                if isinstance(item, (torch.Tensor, tuple, list)):
                    self.items.append(self.graph.call_function(operator.getitem, (node, i)))
                    self.bind(self.items[-1], item)

    def finished(self, outputs: Sequence[torch.Tensor | Size]) -> TorchGraph:
        results = tuple(map(self.argument, outputs))
        self.set_grad(self.grad_before)
        self.graph.output(results)
        for node in (*self.items[::-1], *(n for n, _ in self.places)):
            if not node.users:
                self.graph.erase_node(node)
        tensors = [(node, index) for node, index in self.places if node.users]
        self.graph.lint()
        numbers = {index: (node, kind) for index, (node, kind, _) in self.numbers.items()}
        return TorchGraph(self.graph, tensors, self.symbols, numbers)


class TorchGraph(PlacedGraph):
    """A graph of the program's calls of torch."""

    def runner(
        self,
        backend: Callable[..., Any],
        examples: Sequence[torch.Tensor],
        shapes: Sequence[Shape],
        canonical: dict[str, Any],
    ) -> Callable[[Sequence[torch.Tensor]], Any] | None:
        """What a backend makes of it: takes all inputs of the capture. None: what was found of the sizes after the
        calls does not fit them.

        shapes: of all inputs of the capture; canonical: what their symbols are."""
        varies = any(names_in(e) for _, sizes, strides, _ in shapes for e in (*sizes, *strides))
        if varies or self.symbols or self.numbers:
            if any(canonical.get(name, ("var", name)) != ("var", name) for name in self.symbols):
                return None
            return SizedGraph(self, shapes).runner(backend, examples)
        module = fx.GraphModule(torch.nn.Module(), self.graph)
        used = [index for _, index in self.tensors]
        if not self.has_calls():
            return lambda inputs: module(*[inputs[i] for i in used])
        given = [examples[i] for i in used]
        mode = fake_mode()
        add_example_values(module, [mode.from_tensor(t, static_shapes=True) for t in given], mode)
        compiled = call_backend(backend, module, given, mode)

        def run(inputs: Sequence[torch.Tensor]) -> Any:
            return compiled(*[inputs[i] for i in used])

        return run


def torch_graph(
    calls: Sequence[tuple[Any, ...]],
    inputs: Sequence[tuple[torch.Tensor, int, str]],
    outputs: Sequence[torch.Tensor | Size],
    grad: bool,
    canonical: dict[str, Any],
) -> TorchGraph | None:
    """calls: function, args, kwargs, result, the grad mode, whether operators ran, where, what it found of data, the
    tensors that numbers are handed out in; or a relation of two sizes that holds. canonical: what symbols of sizes were
    found to be. None: a graph cannot say them."""
    builder = _Builder(inputs, grad, canonical)
    try:
        for call in calls:
            if len(call) == 3:
                builder.check(*call)
                continue
            function, args, kwargs, result, grad_then, ran, place, found, copies = call
            builder.set_grad(grad_then)
            builder.call(function, args, kwargs, result, ran, place, found, copies)
        return builder.finished(outputs)
    except (_Unsayable, RuntimeError):
        return None
