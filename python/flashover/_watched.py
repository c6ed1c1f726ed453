"""Graphs that are watched while they are compiled and called (src/entry/checked.h): compiled code and eager on copies
of a call's inputs, and the graph's values as a torch.fx module that computes each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from flashover import _repro
from flashover.fx_graph import Emitter, placeholder_names

aten = torch.ops.aten
Run = Callable[[Sequence[Any]], Sequence[Any] | None]
_TANGENTS_SEED = 20


def clones(inputs: Sequence[Any]) -> list[Any]:
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
            whole = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
            storages[key] = whole.clone()
        copied = torch.empty(0, dtype=t.dtype, device=t.device)
        made.append(copied.set_(storages[key].untyped_storage(), t.storage_offset(), t.size(), t.stride()))
    return made


class RandomState:
    """torch's random numbers, so that each run of a graph draws the same ones."""

    def __init__(self) -> None:
        self._cpu = torch.random.get_rng_state()
        started = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._cuda = torch.cuda.get_rng_state_all() if started else []

    def restore(self) -> None:
        torch.random.set_rng_state(self._cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


class OtherVersion(Exception):
    """Compiled code took something for granted that is not so in this call, which another version serves."""


class WatchedGraph:
    """What a captured graph computes, in the order of its results, what it writes into inputs, and its gradients."""

    def __init__(self, description: dict[str, Any] | None) -> None:
        self._known = description
        if description is None:
            return
        self.training, self.symbols = bool(description["training"]), bool(description["symbols"])
        self._written = [i for i, _ in description["written"]]
        self._gradients = [i for i, _ in description["gradients"]]
        places = [*description["results"], *description["written"], *description["gradients"]]
        self._values = [v for _, v in places]  # by value: which output of the module it is, or -1

    def __bool__(self) -> bool:
        """Whether it can be watched."""
        return self._known is not None

    def copies(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """What a run is given, and the leaves of it, by input."""
        assert self._known is not None
        apart = [
            not kept or i in self._written for i, kept in zip(range(len(inputs)), self._known["lasting"], strict=False)
        ]
        fresh = iter(clones([t for t, own in zip(inputs, apart, strict=True) if own]))
        leaves = [next(fresh) if own else t for t, own in zip(inputs, apart, strict=True)]
        given = list(leaves)
        for i, t in enumerate(inputs):
            if self.training and isinstance(t, torch.Tensor) and t.requires_grad and apart[i]:
                leaves[i].requires_grad_()
                with torch.enable_grad():  # autograd forbids to write leaves
                    given[i] = leaves[i].clone() if i in self._written else leaves[i]
        return given, leaves

    def run(self, run: Run, inputs: Sequence[Any]) -> tuple[list[Any], dict[int, torch.Tensor]]:
        """All values of one run on copies; and by number, what inputs the backward had beside: gradients of results,
        the same numbers in each run, and what it found in inputs."""
        assert self._known is not None
        given, leaves = self.copies(inputs)
        with torch.set_grad_enabled(self.training):
            outputs = run(given)
        if outputs is None:
            raise OtherVersion
        outputs = list(outputs)
        values = [*outputs, *(given[i] for i in self._written)]
        beside: dict[int, torch.Tensor] = {n: given[i].detach().clone() for n, i in self._known["late"]}
        if self.training:
            roots = {n: outputs[r] if r >= 0 else given[-1 - r] for n, r in self._known["tangents"]}
            beside |= {n: _tangent(root, n, root.requires_grad) for n, root in roots.items()}
            followed = [n for n, root in roots.items() if root.requires_grad]
            sources = [leaves[i] for i in self._gradients]
            if followed and sources:
                values += torch.autograd.grad(
                    [roots[n] for n in followed], sources, [beside[n] for n in followed], allow_unused=True
                )
            else:
                values += [None] * len(sources)
        return [v.detach() if isinstance(v, torch.Tensor) else v for v in values], beside

    def module(self, inputs: Sequence[Any]) -> fx.GraphModule | None:
        """Placeholders stand for the inputs that may change; what lasts from call to call is an attribute. None: an
        operator has no form in ATen."""
        assert self._known is not None
        description, root = self._known["graph"], torch.nn.Module()
        emitter = Emitter(fx.Graph(), {**description, "places": self._known["places"]})
        names = placeholder_names([source for _, _, source in description["inputs"]])
        attributes = []
        for i, (value, _, _) in enumerate(description["inputs"]):
            if self._lasts(i, inputs):
                root.register_buffer(f"lasting_{names[i]}", inputs[i].detach())
                attributes.append((value, f"lasting_{names[i]}"))
            else:
                emitter.values[value] = emitter.graph.placeholder(names[i])
        for value, name in attributes:
            emitter.values[value] = emitter.graph.get_attr(name)
        try:
            if not emitter.nodes():
                return None
            values = [emitter.values[v] for v in description["outputs"]]
            for i, v in self._known["written"]:
                if v >= 0:  # the write is an operator, too
                    into = emitter.values[description["inputs"][i][0]]
                    values[v] = emitter.graph.call_function(aten.copy_.default, (into, values[v]))
                    values[v].meta["stack_trace"] = getattr(values[v].args[1], "meta", {}).get("stack_trace", "")
            emitter.graph.output(tuple(values))
        except KeyError:  # a size that no tensor has as it is
            return None
        return fx.GraphModule(root, emitter.graph)

    def _lasts(self, i: int, inputs: Sequence[Any]) -> bool:
        assert self._known is not None
        return bool(self._known["lasting"][i]) and i not in self._written and i < len(inputs)

    def module_inputs(self, inputs: Sequence[Any], beside: dict[int, torch.Tensor]) -> list[Any]:
        assert self._known is not None
        indices = range(len(self._known["graph"]["inputs"]))
        return [inputs[i] if i < len(inputs) else beside[i] for i in indices if not self._lasts(i, inputs)]

    def likely_inputs(self, module: fx.GraphModule, inputs: Sequence[Any]) -> list[Any] | None:
        """The same before anything has run. None: the graph does not say what gradients come in."""
        assert self._known is not None
        outputs = next(n for n in module.graph.nodes if n.op == "output").args[0]
        written = dict(self._known["written"])
        sources = {n: self._known["results"][r][1] if r >= 0 else written[-1 - r] for n, r in self._known["tangents"]}
        late = {n: written.get(i) for n, i in self._known["late"]}
        wanted = [v for v in (*sources.values(), *late.values()) if v is not None]
        if -1 in wanted:
            return None
        missing = {n: torch.empty(0) for n in (*sources, *late)}
        part = _repro.with_outputs(module, [outputs[v] for v in wanted])
        made = dict(zip(wanted, part(*self.module_inputs(clones(inputs), missing)), strict=True))
        beside = {n: _tangent(made[v], n, True) for n, v in sources.items()}
        beside |= {n: inputs[i].detach() if late[n] is None else made[late[n]] for n, i in self._known["late"]}
        given = self.module_inputs(inputs, beside)
        return [t.detach() if isinstance(t, torch.Tensor) else t for t in given]

    def values_of(self, outputs: Sequence[Any]) -> list[Any]:
        """The module's outputs in the order of run(); None where it has no such value."""
        return [outputs[v] if v >= 0 else None for v in self._values]

    def maker(self, index: int, module: fx.GraphModule | None) -> tuple[str, str]:
        """The operator that one of the values comes from, and its line; empty: it is not known."""
        assert self._known is not None
        if index < len(self._known["results"]):
            return tuple(self._known["makers"][index])
        if module is None or self._values[index] < 0:
            return "", ""
        node = next(n for n in module.graph.nodes if n.op == "output").args[0][self._values[index]]
        source = _repro.operator_of(node)
        return str(source.target), str(source.meta.get("stack_trace") or "")

    def says(self, index: int) -> str:
        """Which of the values this is."""
        assert self._known is not None
        names = [source for _, _, source in self._known["graph"]["inputs"]]
        results = len(self._known["results"])
        if index < results:
            return f"result {index}"
        index -= results
        if index < len(self._written):
            return f"what it writes into {names[self._written[index]]}"
        return f"the gradient of {names[self._gradients[index - len(self._written)]]}"


def _tangent(root: torch.Tensor, number: int, comes: bool) -> torch.Tensor:
    """The gradient of a result. Zeros where none can come."""
    if not comes:
        return torch.zeros_like(root)
    generator = torch.Generator().manual_seed(_TANGENTS_SEED + number)
    kind = root.dtype if root.dtype.is_complex else torch.float32
    made = torch.randn(root.shape, generator=generator, dtype=kind)
    return made.to(root.dtype).to(root.device)
