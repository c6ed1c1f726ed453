"""The option crosscheck: captured graphs run operator by operator beside their compiled code, and what differs beyond
rounding is traced to the first operator and line.

What a call of compiled code gives, writes and (with gradients of its results that are made up) differentiates to is
compared, on copies of the call's inputs, with the captured graph operator by operator; where the two differ fp64 is the
arbiter. Then the graph's values are computed by parts that are compiled for that.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import fx

from flashover import _reduce, _repro
from flashover._watched import OtherVersion, RandomState, Run, WatchedGraph, clones
from flashover.exc import CrosscheckFailed

EVERY = 100  # of the calls after the first ones, so many go unchecked for each that is checked
_SECONDS_TO_SHRINK = 60.0  # a part that shows a difference
_ROUNDINGS = 8  # units in the last place of the largest element that any order of operations may be off by
Tensors = Sequence[Any]


@dataclass
class Difference:
    """A result that is further from the exact one than rounding explains."""

    what: str
    index: int  # of the outputs


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


class _Doubles(fx.Interpreter):
    """The graph in fp64: floating-point tensors and the dtypes that operators are given. Random numbers, and what
    fp64 has no operator for, are eager's."""

    def __init__(self, module: fx.GraphModule, eager: dict[fx.Node, Any]) -> None:
        super().__init__(module)
        self._eager = eager

    def run_node(self, n: fx.Node) -> Any:
        if torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()):
            return _wide(self._eager[n])
        try:
            value = super().run_node(n)
        except (RuntimeError, TypeError, NotImplementedError, ValueError):
            return _wide(self._eager[n])
        return _wide(value) if n.op == "get_attr" else value

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> Any:
        args, kwargs = super().fetch_args_kwargs_from_env(n)

        def wide(value: Any) -> Any:
            if isinstance(value, torch.dtype) and value.is_floating_point:
                return torch.float64
            return type(value)(map(wide, value)) if type(value) in (list, tuple) else value

        return wide(tuple(args)), {k: wide(v) for k, v in kwargs.items()}


def _wide(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(_wide, value))
    return value.double() if _is_float(value) else value


def exact_values(module: fx.GraphModule, inputs: Tensors, state: RandomState) -> list[Any]:
    """fp64's results, as far as there is fp64."""
    state.restore()
    eager = _repro.values(module, clones(inputs))
    return list(_Doubles(module, eager).run(*map(_wide, clones(inputs))))


def _off(fast: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None) -> str:
    """'' or by how much a result is off."""
    if (fast.dtype, fast.shape) != (eager.dtype, eager.shape):
        return f"{fast.dtype} {tuple(fast.shape)} instead of {eager.dtype} {tuple(eager.shape)}"
    if fast.numel() == 0 or torch.equal(fast, eager):
        return ""
    if not fast.is_floating_point():
        bad = fast != eager
        if exact is not None and exact.shape == eager.shape and not exact.is_complex() and not eager.is_complex():
            bad &= exact == eager  # else roundings before a comparison decide
        return f"{int(bad.sum())} of {bad.numel()} elements differ" if bad.any() else ""
    f, e = fast.double(), eager.double()
    if exact is None or exact.shape != e.shape:
        try:
            torch.testing.assert_close(fast, eager, equal_nan=True)
        except AssertionError as failure:
            return str(failure).split("\n\n")[-1].replace("\n", "; ")
        return ""
    x = exact.double()
    error, own = (f - x).abs(), (e - x).abs()
    scale = torch.nan_to_num(x.abs(), posinf=0.0).max()
    bound = 2 * torch.nan_to_num(own, posinf=0.0).max() + torch.finfo(fast.dtype).eps * _ROUNDINGS * scale
    bad = (error > bound) & (f != e)
    bad |= (f.isnan() & ~e.isnan()) | (~f.isnan() & e.isnan() & x.isnan())
    if not bad.any():
        return ""
    return f"{int(bad.sum())} of {bad.numel()} elements off by up to {error[bad].max():.3g}, eager by {own.max():.3g}"


def first_difference(fast: Tensors, eager: Tensors, exact: Tensors | None) -> Difference | None:
    for i, (f, e) in enumerate(zip(fast, eager, strict=True)):
        if isinstance(f, torch.Tensor) != isinstance(e, torch.Tensor):
            return Difference(f"{'a tensor' if e is None else 'nothing'} instead of {_kind(e)}", i)
        if isinstance(e, torch.Tensor) and (what := _off(f, e, exact[i] if exact is not None else None)):
            return Difference(what, i)
    return None


def _kind(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else "nothing"


def _flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


CompileGraph = Callable[[fx.GraphModule, bool], Callable[..., Any]]  # bool: sizes are symbols


class Checker:
    """Compares graphs with what `compile_graph` makes of them."""

    def __init__(self, compile_graph: CompileGraph, symbols: bool = False) -> None:
        self.compile_graph, self.symbols = compile_graph, symbols

    def difference(self, module: fx.GraphModule, inputs: Tensors) -> Difference | None:
        """Of a graph that is compiled for this."""
        state = RandomState()
        try:
            fast = _flat(self.compile_graph(module, self.symbols)(*clones(inputs)))
            state.restore()
            eager = _flat(module(*clones(inputs)))
            found = first_difference(fast, eager, None)
            return found and first_difference(fast, eager, exact_values(module, inputs, state))
        finally:
            state.restore()

    def first_operator(self, module: fx.GraphModule, inputs: Tensors, known: dict[fx.Node, Any]) -> fx.Node | None:
        """Where compiled code and eager part first: all values are asked for at once; where that hides it (it is a
        matter of what is fused), parts are looked for that show it. known: eager's values."""
        nodes = _repro.operators(module)
        found = self.difference(_repro.with_outputs(module, nodes), inputs)
        if found:
            return nodes[found.index]
        if nodes and self.shows(module, list(inputs)):
            return _reduce.first_operator(module, known, self.shows)
        return None

    def shows(self, part: fx.GraphModule, given: list[Any]) -> bool:
        return self.difference(part, given) is not None

    def smallest(
        self, module: fx.GraphModule, node: fx.Node, inputs: Tensors, known: dict[fx.Node, Any]
    ) -> tuple[fx.GraphModule, list[Any]]:
        """The part of a graph around an operator that still shows the difference; where no part does, all that leads
        to it."""
        deadline = time.monotonic() + _SECONDS_TO_SHRINK
        found = _reduce.smallest_part(module, node, known, self.shows, deadline)
        return found or (_repro.with_outputs(module, [node]), list(inputs))


class Comparison:
    """One call's compiled code and eager on copies of its inputs."""

    def __init__(self, graph: WatchedGraph, inputs: Tensors) -> None:
        self.graph, self.inputs = graph, inputs
        self.state = RandomState()
        self._beside: dict[int, torch.Tensor] = {}
        self.raised = ""  # by compiled code, where eager goes through
        self.unchecked = ""  # why there was nothing to compare with

    def run(self, compiled: Run, eager: Run) -> Difference | None:
        try:
            try:
                expected, self._beside = self.graph.run(eager, self.inputs)
            except Exception as error:  # as the program does by itself, most likely
                self.unchecked = f"{type(error).__name__}: {error}".partition("\n")[0]
                return None
            self.state.restore()
            try:
                got, _ = self.graph.run(compiled, self.inputs)
            except OtherVersion:
                return None
            except Exception as error:
                self.raised = f"raises {type(error).__name__}: {error}".partition("\n")[0]
                return None
            found = first_difference(got, expected, None)
            if not found:
                return None
            with torch.no_grad():
                module = self.graph.module(self.inputs)
                if module is None:
                    return found
                exact = exact_values(module, self.module_inputs(), self.state)
                return first_difference(got, expected, self.graph.values_of(exact))
        finally:
            self.state.restore()

    def module_inputs(self) -> list[Any]:
        given = self.graph.module_inputs(self.inputs, self._beside)
        return [t.detach() if isinstance(t, torch.Tensor) else t for t in given]


class Crosschecked:
    """A captured graph whose compiled code is checked in the first calls and in some of the later ones."""

    def __init__(self, graph: WatchedGraph, check: Crosscheck) -> None:
        self._graph, self._check = graph, check
        self._calls = 0

    def call(self, inputs: Tensors, compiled: Run, eager: Run) -> None:
        self._calls += 1
        if self._calls > self._check.first and self._calls % EVERY:
            return
        if not self._graph:
            self._leave_out("the graph has no form as values")
            return
        comparison = Comparison(self._graph, inputs)
        found = comparison.run(compiled, eager)
        with torch.no_grad():
            if found:
                comparison.state.restore()
                self._fail(found, comparison)
            if comparison.raised:
                self._give_up(f"compiled code {comparison.raised}; eager does not", comparison)
        if comparison.unchecked:
            self._leave_out(comparison.unchecked)

    def _leave_out(self, why: str) -> None:
        warnings.warn(f"crosscheck: a graph of {self._check.name} is not checked: {why}", RuntimeWarning, stacklevel=3)

    def failed(self, why: str) -> None:
        """The compiler: that is said elsewhere."""

    def ended(self) -> None:
        pass

    def _fail(self, found: Difference, comparison: Comparison) -> None:
        name, says = self._check.name, f"{self._graph.says(found.index)} is not eager's: {found.what}"
        opening = f"What the option crosscheck found in {name}: "
        module = comparison.graph.module(comparison.inputs)
        if module is None:
            self._give_up(says, comparison, found.index)
        inputs = comparison.module_inputs()
        known = _repro.values(module, clones(inputs))
        for symbols in (True, False) if self._graph.symbols else (False,):
            checker = Checker(self._check.compile_graph, symbols)
            node = checker.first_operator(module, inputs, known)
            if node:
                break
        else:
            self._give_up(says, comparison, found.index)
        part, given = checker.smallest(module, node, inputs, known)
        given, made_by = _repro.plainest(part, given, lambda values: checker.difference(part, values) is not None)
        source = _repro.operator_of(node)
        place = str(source.meta.get("stack_trace") or self._graph.maker(found.index, module)[1])
        what = checker.difference(part, given)
        what_text = what.what if what else found.what
        where = place.partition(" in ")[0]
        raise CrosscheckFailed(
            f"crosscheck: {name}, call {self._calls}: compiled code and eager part at {source.target}"
            f"{f', {place}' if place else ''}: {what_text}. The exception's `repro` is a script of "
            f"{len(_repro.operators(part))} operators",
            where=where,
            operator=str(source.target),
            repro=_repro.script(
                part, given, made_by, f"{opening}{source.target} {place}: {what_text}", dynamic=symbols
            ),
        )

    def _give_up(self, says: str, comparison: Comparison, index: int | None = None) -> NoReturn:
        """No operator shows it by itself: the script is of the whole graph. index: of the value that is wrong."""
        name, module, repro = self._check.name, comparison.graph.module(comparison.inputs), ""
        operator, place = ("", "") if index is None else self._graph.maker(index, module)
        if operator:
            says += f"; it comes from {operator}{f', {place}' if place else ''}, which does not show it by itself"
        if module is not None:
            opening = f"What the option crosscheck found in {name}: {says}"
            inputs = comparison.module_inputs()
            repro = _repro.script(module, inputs, None, opening, dynamic=self._graph.symbols)
        where = place.partition(" in ")[0]
        raise CrosscheckFailed(
            f"crosscheck: {name}, call {self._calls}: {says}", where=where, operator=operator, repro=repro
        )


class Crosscheck:
    """Watches the graphs of a callable with the option crosscheck; forward and backward alike."""

    def __init__(self, compile_graph: CompileGraph, name: str, first: int) -> None:
        self.compile_graph, self.name, self.first = compile_graph, name, first

    def graph(self, description: dict[str, Any] | None, inputs: Tensors) -> Crosschecked:
        return Crosschecked(WatchedGraph(description), self)
