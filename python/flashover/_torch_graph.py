"""The program's calls of torch as a graph of torch.fx: what torch.compile hands to backends that others write.

src/frame/interpret/torch_calls.h takes the calls down while a call is captured.
"""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

_CONSTANTS = {
    int, float, bool, str, complex, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format,
}  # fmt: skip


class _Unsayable(Exception):
    """A call that a graph of torch.fx cannot hold."""


def is_node(function: Callable[..., Any]) -> bool:
    """Whether a call of this function of torch's is a node of torch.compile's graphs; else it is looked into."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables import TorchInGraphFunctionVariable

    kind = trace_rules.lookup(function)
    return kind is not None and issubclass(kind, TorchInGraphFunctionVariable)


class _Builder:
    def __init__(self, inputs: Iterable[tuple[torch.Tensor, int, str]], grad: bool) -> None:
        self.graph = fx.Graph()
        self.grad = self.grad_before = grad
        self.nodes: dict[int, fx.Node] = {}  # by the tensor that the program has; the calls keep them alive
        self.places: list[tuple[fx.Node, int]] = []  # placeholders, and which input of the capture each is
        self.items: list[fx.Node] = []
        for tensor, index, path in inputs:
            if id(tensor) not in self.nodes:
                node = self.graph.placeholder("L_" + re.sub(r"\W+", "_", path).strip("_") + "_")
                node.meta["source"] = path
                self.nodes[id(tensor)] = node
                self.places.append((node, index))

    def argument(self, given: Any) -> Any:
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
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, ran: bool, place: str
    ) -> None:
        if not ran and (function is getattr or isinstance(result, dict)) and self.is_known(result):
            return
        method = None
        if isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType)):
            method = function.__name__
        elif isinstance(function, types.BuiltinFunctionType) and isinstance(function.__self__, torch.Tensor):
            method, args = function.__name__, (function.__self__, *args)
        elif isinstance(function, types.FunctionType) and function.__module__ == "torch._tensor":
            method = function.__name__
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

    def bind(self, node: fx.Node, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self.nodes.setdefault(id(result), node)
        elif isinstance(result, (tuple, list)):
            for i, item in enumerate(result):
                if isinstance(item, (torch.Tensor, tuple, list)):
                    self.items.append(self.graph.call_function(operator.getitem, (node, i)))
                    self.bind(self.items[-1], item)

    def finished(self, outputs: Sequence[torch.Tensor]) -> TorchGraph:
        results = tuple(map(self.argument, outputs))
        self.set_grad(self.grad_before)
        self.graph.output(results)
        for node in (*self.items[::-1], *(n for n, _ in self.places)):
            if not node.users:
                self.graph.erase_node(node)
        used = [index for node, index in self.places if node.users]
        self.graph.lint()
        return TorchGraph(fx.GraphModule(torch.nn.Module(), self.graph), used)


class TorchGraph:
    """A graph module, and which inputs of the capture its placeholders are."""

    def __init__(self, module: fx.GraphModule, used: list[int]) -> None:
        self.module, self.used = module, used

    def runner(
        self, backend: Callable[..., Any], examples: Sequence[torch.Tensor]
    ) -> Callable[[Sequence[torch.Tensor]], Any]:
        """What a backend makes of it: takes all inputs of the capture."""
        used = self.used
        given = [examples[i] for i in used]
        _add_example_values(self.module, given)
        compiled = backend(self.module, given)
        if not callable(compiled):
            raise TypeError(f"a backend must return a callable, not {type(compiled).__name__}")

        def run(inputs: Sequence[torch.Tensor]) -> Any:
            return compiled(*[inputs[i] for i in used])

        return run


class _ExampleValues(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op != "output":
            n.meta["example_value"] = result
        return result


def _add_example_values(module: fx.GraphModule, examples: Sequence[torch.Tensor]) -> None:
    """Each node's result, as a fake tensor, under the name that torch.compile gives it. An operator without a rule for
    fake tensors leaves the nodes from there on without."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = torch.is_grad_enabled()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            _ExampleValues(module).run(*[mode.from_tensor(t, static_shapes=True) for t in examples])
    except Exception as e:
        module.meta["example_values_end"] = f"{type(e).__name__}: {e}"
    finally:
        torch._C._set_grad_enabled(before)


def torch_graph(
    calls: Sequence[tuple[Any, tuple[Any, ...], dict[str, Any], Any, bool, bool, str]],
    inputs: Sequence[tuple[torch.Tensor, int, str]],
    outputs: Sequence[torch.Tensor],
    grad: bool,
) -> TorchGraph | None:
    """calls: function, args, kwargs, result, the grad mode, whether operators ran, where. None: a graph cannot say
    them."""
    builder = _Builder(inputs, grad)
    try:
        for function, args, kwargs, result, grad_then, ran, place in calls:
            builder.set_grad(grad_then)
            builder.call(function, args, kwargs, result, ran, place)
        return builder.finished(outputs)
    except (_Unsayable, RuntimeError):
        return None
