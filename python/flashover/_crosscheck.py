"""The option crosscheck: captured graphs run operator by operator beside their compiled code, and what differs beyond
rounding is traced to the first operator and line.

A captured graph, of a backward too, is compiled by the whole pipeline and run; on copies of its inputs torch runs it as
it is, and, where the two differ, in fp64 as the arbiter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from flashover import _reduce, _repro
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


def _clones(inputs: Tensors) -> list[Any]:
    """Copies that lie in memory as the originals do, tensors of one storage in one storage again."""
    storages: dict[int, torch.Tensor] = {}
    made = []
    for t in inputs:
        if not isinstance(t, torch.Tensor):
            made.append(t)
            continue
        t = t.detach()
        key = t.untyped_storage().data_ptr()
        if key not in storages or not key:
            whole = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())  # type: ignore[call-overload]
            storages[key] = whole.clone()
        copied = torch.empty(0, dtype=t.dtype, device=t.device)
        made.append(copied.set_(storages[key].untyped_storage(), t.storage_offset(), t.size(), t.stride()))  # type: ignore[call-overload]
    return made


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


class _State:
    """torch's random numbers, so that each run of a graph draws the same ones."""

    def __init__(self) -> None:
        self._cpu = torch.random.get_rng_state()
        started = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._cuda = torch.cuda.get_rng_state_all() if started else []

    def restore(self) -> None:
        torch.random.set_rng_state(self._cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


def _exact(module: fx.GraphModule, inputs: Tensors, state: _State) -> list[Any]:
    """fp64's results, as far as there is fp64."""
    state.restore()
    eager = _repro.values(module, _clones(inputs))
    return list(_Doubles(module, eager).run(*map(_wide, _clones(inputs))))


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
        if isinstance(e, torch.Tensor) and (what := _off(f, e, exact[i] if exact is not None else None)):
            return Difference(what, i)
    return None


def _flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


class Checker:
    """Compares graphs with what `compile_graph` makes of them."""

    def __init__(self, compile_graph: Callable[[fx.GraphModule], Callable[..., Any]]) -> None:
        self.compile_graph = compile_graph

    def difference(self, module: fx.GraphModule, inputs: Tensors) -> Difference | None:
        """Of a graph that is compiled for this."""
        state = _State()
        try:
            fast = _flat(self.compile_graph(module)(*_clones(inputs)))
            state.restore()
            eager = _flat(module(*_clones(inputs)))
            found = first_difference(fast, eager, None)
            return found and first_difference(fast, eager, _exact(module, inputs, state))
        finally:
            state.restore()

    def first_operator(self, module: fx.GraphModule, inputs: Tensors) -> fx.Node | None:
        """Where compiled code and eager part first: all values are asked for at once; where that hides it (it is a
        matter of what is fused), one value after the other by halving."""
        nodes = _repro.operators(module)
        found = self.difference(_repro.with_outputs(module, nodes), inputs)
        if found:
            return nodes[found.index]
        low, high = 0, len(nodes) - 1
        while low < high:
            middle = (low + high) // 2
            if self.difference(_repro.with_outputs(module, [nodes[middle]]), inputs):
                high = middle
            else:
                low = middle + 1
        last = nodes[low] if nodes else None
        return last if last and self.difference(_repro.with_outputs(module, [last]), inputs) else None

    def smallest(self, module: fx.GraphModule, node: fx.Node, inputs: Tensors) -> tuple[fx.GraphModule, list[Any]]:
        """The part of a graph around an operator that still shows the difference; where no part does, all that leads
        to it."""

        def shows(part: fx.GraphModule, given: list[Any]) -> bool:
            return self.difference(part, given) is not None

        deadline = time.monotonic() + _SECONDS_TO_SHRINK
        values = _repro.values(module, _clones(inputs))
        found = _reduce.smallest_before(module, node, values, shows, deadline)
        return found or (_repro.with_outputs(module, [node]), list(inputs))


class Crosschecked:
    """A captured graph, compiled, that is checked in the first calls and in some of the later ones."""

    def __init__(self, module: fx.GraphModule, checker: Checker, name: str, first: int) -> None:
        self._module, self._checker, self._name, self._first = module, checker, name, first
        self._fast: Callable[..., Any] | None = None
        self._calls = 0

    def __call__(self, *inputs: Any) -> Any:
        with torch.no_grad():
            if self._fast is None:
                self._fast = self._checker.compile_graph(self._module)
            self._calls += 1
            if self._calls > self._first and self._calls % EVERY:
                return self._fast(*inputs)
            state, before = _State(), _clones(inputs)
            eager = _flat(self._module(*_clones(inputs)))
            state.restore()
            result = self._fast(*inputs)
            found = first_difference(_flat(result), eager, None)
            if found:
                after = _State()
                if found := first_difference(_flat(result), eager, _exact(self._module, before, state)):
                    state.restore()
                    self._fail(found, before)
                after.restore()
            return result

    def _opening(self, what: str) -> str:
        return f"What the option crosscheck found in {self._name}: {what}"

    def _fail(self, found: Difference, inputs: Tensors) -> None:
        node = self._checker.first_operator(self._module, inputs)
        if node is None:
            raise CrosscheckFailed(
                f"crosscheck: {self._name}, call {self._calls}: result {found.index} is not eager's: {found.what}; "
                "no single operator shows it by itself",
                repro=_repro.script(self._module, list(inputs), None, self._opening(found.what)),
            )
        part, given = self._checker.smallest(self._module, node, inputs)
        given, made_by = _repro.plainest(part, given, lambda values: self._checker.difference(part, values) is not None)
        source = _repro.operator_of(node)
        place = str(source.meta.get("stack_trace") or "")
        what = self._checker.difference(part, given)
        what_text = what.what if what else found.what
        where = place.partition(" in ")[0]
        raise CrosscheckFailed(
            f"crosscheck: {self._name}, call {self._calls}: compiled code and eager part at {source.target}"
            f"{f', {place}' if place else ''}: {what_text}. The exception's `repro` is a script of "
            f"{len(_repro.operators(part))} operators",
            where=where,
            operator=str(source.target),
            repro=_repro.script(part, given, made_by, self._opening(f"{source.target} {place}: {what_text}")),
        )


class Crosscheck:
    """The backend that the option crosscheck stands for; forward and backward graphs alike."""

    compiles_backwards = True

    def __init__(self, compile_graph: Callable[[fx.GraphModule], Callable[..., Any]], name: str, first: int) -> None:
        self._checker, self._name, self._first = Checker(compile_graph), name, first
        self.__name__ = "crosscheck"

    def __call__(self, module: fx.GraphModule, examples: Tensors) -> Callable[..., Any]:
        return Crosschecked(module, self._checker, self._name, self._first)
