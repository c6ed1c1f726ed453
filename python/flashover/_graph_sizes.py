"""Graphs of torch's calls whose sizes change from call to call, as torch.compile hands them to a backend: a placeholder
for each size that is a symbol, before the first tensor that has it, and sizes computed of these by nodes."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from flashover.fx_graph import ARITHMETIC, size_value

# Of an input of the capture: its name, sizes and strides as expressions, is it an int that is a size.
Shape = tuple[str, list[Any], list[Any], bool]
_MOST_VERSIONS = 16  # of one graph; calls of other sizes run it as it is
_LEAST = 2  # torch's symbols have no smaller value: 0 and 1 are taken for numbers


def names_in(expression: Any) -> list[str]:
    """The symbols of an expression (frame/size_expression.h)."""
    if isinstance(expression, int):
        return []
    kind, operands = expression
    if kind == "var":
        return [operands]
    return list(dict.fromkeys(name for o in operands for name in names_in(o)))


def placeholder_name(path: str) -> str:
    return "L_" + re.sub(r"\W+", "_", path).strip("_") + "_"


def call_backend(
    backend: Callable[..., Any], module: fx.GraphModule, examples: Sequence[Any], mode: Any
) -> Callable[..., Any]:
    from torch._guards import TracingContext, tracing

    with tracing(TracingContext(mode)):
        compiled = backend(module, list(examples))
    if not callable(compiled):
        raise TypeError(f"a backend must return a callable, not {type(compiled).__name__}")
    return compiled


def fake_mode() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(
        shape_env=ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True), allow_non_fake_inputs=True
    )


class _ExampleValues(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, environment: Any) -> None:
        super().__init__(module)
        self.environment = environment

    def run_node(self, n: fx.Node) -> Any:
        from torch.fx.experimental.symbolic_shapes import compute_unbacked_bindings

        result = super().run_node(n)
        if n.op != "output":
            n.meta["example_value"] = result
            if bindings := compute_unbacked_bindings(self.environment, result):  # sizes that follow from data
                n.meta["unbacked_bindings"] = bindings
        return result


def add_example_values(module: fx.GraphModule, inputs: Sequence[Any], mode: Any) -> None:
    """Each node's result, as a fake tensor, under the name that torch.compile gives it. An operator without a rule for
    fake tensors leaves the nodes from there on without."""
    from torch._dispatch.python import enable_python_dispatcher

    before = torch.is_grad_enabled()
    try:
        with mode, enable_python_dispatcher():
            _ExampleValues(module, mode.shape_env).run(*inputs)
    except Exception as e:
        module.meta["example_values_end"] = f"{type(e).__name__}: {e}"
    finally:
        mode.shape_env.pending_fresh_unbacked_symbols.clear()
        torch._C._set_grad_enabled(before)


@dataclass(frozen=True)
class PlacedGraph:
    """A graph, and what its placeholders are."""

    graph: fx.Graph
    tensors: list[tuple[fx.Node, int]]  # inputs of the capture, by position
    symbols: dict[str, fx.Node]  # of sizes, by name
    numbers: dict[int, tuple[fx.Node, type]]  # inputs of the capture that are numbers

    def has_calls(self) -> bool:
        """Else there is no work for a backend."""
        return any(n.op.startswith("call") for n in self.graph.nodes)


class SizedGraph:
    """A graph, and how its placeholders are read off the inputs of the capture."""

    def __init__(self, placed: PlacedGraph, shapes: Sequence[Shape]) -> None:
        self.graph, self.shapes, self.has_calls = placed.graph, shapes, placed.has_calls()
        # By symbol: an input, and the dimension that it is the size or the stride of; None: the input is the number.
        self.places: dict[str, tuple[int, int | None]] = {}
        self.strides: set[str] = set()
        for what in (1, 2):
            for i, shape in enumerate(shapes):
                for d, e in enumerate(shape[what]):  # type: ignore[arg-type]
                    if isinstance(e, int) or e[0] != "var" or e[1] in self.places:
                        continue
                    self.places[e[1]] = i, d
                    if what == 2:
                        self.strides.add(e[1])
        nodes = dict(placed.symbols)
        for index, (node, kind) in placed.numbers.items():
            if kind is int:
                nodes[node.name] = node
                self.places[node.name] = index, None
        wanted = {index: node for node, index in placed.tensors}
        floats = {index: node for index, (node, kind) in placed.numbers.items() if kind is float}
        # In the order of the inputs: placeholder, and the symbol or the input that it is.
        self.placeholders: list[tuple[fx.Node, str | int]] = []
        self.symbols: dict[str, fx.Node] = {}
        for index, (_, sizes, strides, _) in enumerate(shapes):
            here = [n for n in nodes if self.places[n][0] == index and index not in wanted]
            if index in wanted:
                here += [n for e in (*sizes, *strides) for n in names_in(e)]
            for name in here:
                if name not in self.symbols:
                    self.symbols[name] = nodes.get(name) or self.graph.placeholder(name)
                    self.placeholders.append((self.symbols[name], name))
            for found in (wanted, floats):
                if index in found:
                    self.placeholders.append((found[index], index))
        first = next(n for n in self.graph.nodes if n.op != "placeholder")
        for node, _ in self.placeholders:
            first.prepend(node)
        self.floats = set(floats)

    def value(self, what: str | int, inputs: Sequence[torch.Tensor]) -> Any:
        """Of a symbol, or of an input that is a float."""
        if isinstance(what, int):
            return inputs[what].item()
        index, dim = self.places[what]
        if dim is None:
            return inputs[index].item()
        return inputs[index].stride(dim) if what in self.strides else inputs[index].shape[dim]

    def is_size(self, what: str | int) -> bool:
        """Or the stride of a tensor: no other number."""
        if isinstance(what, int):
            return False
        index, dim = self.places[what]
        return dim is not None and not self.shapes[index][3]

    def given(self, what: str | int, inputs: Sequence[torch.Tensor]) -> Any:
        if isinstance(what, str):
            return self.value(what, inputs)
        if what in self.floats:
            return torch.tensor(inputs[what].item(), dtype=torch.float64)
        return inputs[what]

    def given_all(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        return [self.given(what, inputs) for _, what in self.placeholders]

    def runner(
        self, backend: Callable[..., Any], examples: Sequence[torch.Tensor]
    ) -> Callable[[Sequence[torch.Tensor]], Any]:
        if not self.has_calls:
            module = fx.GraphModule({}, self.graph)
            return lambda inputs: module(*self.given_all(inputs))
        versions = [_Version(self, backend, examples)]
        whole: list[fx.GraphModule] = []

        def run(inputs: Sequence[torch.Tensor]) -> Any:
            for version in versions:
                if version.serves(inputs):
                    return version.run(inputs)
            if len(versions) < _MOST_VERSIONS:
                versions.append(_Version(self, backend, inputs))
                return versions[-1].run(inputs)
            if not whole:
                whole.append(fx.GraphModule(torch.nn.Module(), self.graph))
            return whole[0](*self.given_all(inputs))

        return run


class _Version:
    """What a backend made of the graph for these sizes, and for all others that pass what it asked of them."""

    def __init__(self, sized: SizedGraph, backend: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> None:
        from torch._dynamo.exc import TensorifyScalarRestartAnalysis

        self.sized = sized
        try:
            self._make(backend, inputs, floats_are_open=True)
        except TensorifyScalarRestartAnalysis:  # AOTAutograd's word for a float that it needs the value of
            self._make(backend, inputs, floats_are_open=False)

    def _make(self, backend: Callable[..., Any], inputs: Sequence[torch.Tensor], floats_are_open: bool) -> None:
        sized = self.sized
        values = {what: sized.value(what, inputs) for what in (*sized.symbols, *sized.floats)}
        self.fixed: dict[str | int, Any] = {}
        self.open: dict[str | int, Any] = {}
        for what, value in values.items():
            may_vary = floats_are_open if isinstance(what, int) else value >= _LEAST or not sized.is_size(what)
            (self.open if may_vary else self.fixed)[what] = value
        self.mode = fake_mode()
        self.environment = self.mode.shape_env
        self.sympy: dict[str | int, Any] = {what: self._symbol(what, value) for what, value in self.open.items()}
        graph, kept = self._copy()
        self.placeholders = [what for _, what in kept]
        module = fx.GraphModule(torch.nn.Module(), graph)
        examples = [
            self.environment.create_symintnode(self.sympy[what], hint=self.open[what])
            if isinstance(what, str)
            else sized.given(what, inputs)
            for what in self.placeholders
        ]
        fakes = [
            example if isinstance(what, str) else self._fake(example, what)
            for what, example in zip(self.placeholders, examples, strict=True)
        ]
        add_example_values(module, fakes, self.mode)
        self.compiled = call_backend(backend, module, examples, self.mode)
        self.holds = self._guards()

    def _symbol(self, what: str | int, value: Any) -> Any:
        from torch._dynamo.source import TensorProperty, TensorPropertySource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        if not self.sized.is_size(what):
            index = what if isinstance(what, int) else self.sized.places[what][0]
            return self.environment.create_unspecified_symbol(value, self._source(index), DimDynamic.DYNAMIC)
        index, dim = self.sized.places[what]
        part = TensorProperty.STRIDE if what in self.sized.strides else TensorProperty.SIZE
        source = TensorPropertySource(self._source(index), part, dim)
        return self.environment.create_symbol(value, source, DimDynamic.DYNAMIC, None)

    def _source(self, index: int) -> Any:
        from torch._dynamo.source import ConstantSource, LocalSource

        path = self.sized.shapes[index][0]
        return LocalSource(path) if path.isidentifier() else ConstantSource(path)

    def _name(self, node: fx.Node, what: str | int) -> str:
        if isinstance(what, int):
            return str(node.target)
        if self.sized.is_size(what):
            return str(self.sympy[what])
        return placeholder_name(self.sized.shapes[self.sized.places[what][0]][0])

    def _copy(self) -> tuple[fx.Graph, list[tuple[fx.Node, str | int]]]:
        """The graph with numbers in the place of symbols that are fixed."""
        graph, nodes, arithmetic = fx.Graph(), dict[fx.Node, Any](), {operator.sub, *ARITHMETIC.values()}
        kept = []
        for node, what in self.sized.placeholders:
            if what in self.fixed:
                nodes[node] = self.fixed[what]
                continue
            nodes[node] = made = graph.placeholder(self._name(node, what))
            made.meta = dict(node.meta)
            kept.append((made, what))
        for node in self.sized.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.target == "item" and isinstance(nodes[node.args[0]], float):
                nodes[node] = nodes[node.args[0]]
                continue
            made = graph.node_copy(node, nodes.__getitem__)
            if node.target in arithmetic and all(isinstance(a, int) for a in made.args):
                graph.erase_node(made)
                made = node.target(*made.args)
            nodes[node] = made
        graph.lint()
        return graph, kept

    def _expression(self, expression: Any) -> Any:
        """In sympy's terms, as torch.compile's fake tensors have it."""
        import sympy
        from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

        functions = dict(zip(ARITHMETIC.values(), (sympy.Add, sympy.Mul, FloorDiv, Mod, Min, Max), strict=True))
        symbols = {n: self.sympy.get(n, self.fixed.get(n, 0)) for n in names_in(expression)}
        return sympy.sympify(size_value(expression, symbols, lambda function, *of: functions[function](*of)))

    def _fake(self, tensor: torch.Tensor, index: int) -> Any:
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatefulSymbolicContext

        _, sizes, strides, _ = self.sized.shapes[index]
        if index in self.sized.floats:
            fake = self.mode.from_tensor(tensor, static_shapes=True)
            source, value = self._source(index), self.open[index]
            fake.item_memo = self.environment.create_symfloatnode(self.sympy[index], hint=value, source=source)
            return fake
        if not any(names_in(e) for e in (*sizes, *strides)):
            return self.mode.from_tensor(tensor, static_shapes=True)
        source = self._source(index)
        known = {f"{source.name}.storage_offset()": self._expression(tensor.storage_offset())}
        for what, expressions in (("size", sizes), ("stride", strides)):
            known |= {f"{source.name}.{what}()[{i}]": self._expression(e) for i, e in enumerate(expressions)}
        context = StatefulSymbolicContext(
            dynamic_sizes=[DimDynamic.DYNAMIC if names_in(e) else DimDynamic.STATIC for e in sizes],
            tensor_source=source,
            shape_env_to_source_to_symbol_cache={id(self.environment): known},
        )
        return self.mode.from_tensor(tensor, source=source, symbolic_context=context)

    def _guards(self) -> Callable[..., bool]:
        """What fake tensors and the backend asked of the sizes, as a function of them."""
        from torch.utils._sympy.interp import sympy_interp
        from torch.utils._sympy.reference import PythonReferenceAnalysis

        said = [guard.expr for guard in self.environment.guards]
        known = set(self.sympy.values())
        if any(not e.free_symbols <= known for e in said):
            these = list(self.open.values())
            return lambda *now: list(now) == these

        def function(guard: Any) -> Callable[..., bool]:
            graph = fx.Graph()
            tracer = fx.proxy.GraphAppendingTracer(graph)
            sizes = {e: fx.Proxy(graph.placeholder(f"size_{i}"), tracer) for i, e in enumerate(self.sympy.values())}
            answer = sympy_interp(PythonReferenceAnalysis, sizes, guard)
            graph.output(answer.node if isinstance(answer, fx.Proxy) else answer)
            return fx.GraphModule({}, graph).forward

        functions = [function(guard) for guard in dict.fromkeys(said)]
        return lambda *now: all(holds(*now) for holds in functions)  # in order: later ones may count on earlier ones

    def serves(self, inputs: Sequence[torch.Tensor]) -> bool:
        if any(self.sized.value(name, inputs) != v for name, v in self.fixed.items()):
            return False
        now = {what: self.sized.value(what, inputs) for what in self.open}
        small = any(self.sized.is_size(what) and value < _LEAST for what, value in now.items())
        return not small and bool(self.holds(*now.values()))

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        return self.compiled(*[self.sized.given(what, inputs) for what in self.placeholders])
