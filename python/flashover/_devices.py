"""Exported programs for another kind of device than the one they were exported on."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.utils._pytree as pytree

from flashover import _C, exc

CUDA = torch.device("cuda", 0)
# Attention as one kind of device computes it: which arguments are the mask, the share dropped and the flag is_causal.
_aten = torch.ops.aten
_ATTENTION = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default: ("attn_mask", 3, 4),
    _aten._scaled_dot_product_flash_attention.default: (None, 3, 4),
    _aten._scaled_dot_product_efficient_attention.default: (3, 5, 6),
    _aten._scaled_dot_product_cudnn_attention.default: (3, 5, 6),
}


def kind_of(exported: Any) -> str:
    """The kind of device that a program is for: "cuda" where one of its tensors is there, else "cpu"."""
    tensors = [*exported.state_dict.values(), *exported.constants.values()]
    tensors += pytree.tree_leaves(exported.example_inputs)
    values = [n.meta.get("val") for n in exported.graph.nodes]
    found = {t.device.type for t in [*tensors, *values] if isinstance(t, torch.Tensor)}
    return "cuda" if "cuda" in found else "cpu"


class Mover:
    """Copies of a program's tensors on another kind of device: only what they are counts there, not what they hold.

    Where the process has no CUDA device, what stands for a tensor on one has its type and no memory. Each tensor is
    moved once, so that what was one tensor stays one.
    """

    def __init__(self, kind: str) -> None:
        self.device = CUDA if kind == "cuda" else torch.device("cpu")
        self._moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # (the first one is kept, so that its id is)

    def tensor(self, t: torch.Tensor) -> torch.Tensor:
        if t.device.type == self.device.type:
            return t
        if id(t) not in self._moved:
            copy = self._copy(t.detach())
            if isinstance(t, torch.nn.Parameter):
                copy = torch.nn.Parameter(copy, requires_grad=False)
            self._moved[id(t)] = (t, copy)
        return self._moved[id(t)][1]

    def original(self, name: str, t: torch.Tensor) -> torch.Tensor:
        """What a copy is of; a tensor that the capture made itself, as it is, if it holds anything."""
        for first, copy in self._moved.values():
            if copy is t:
                return first
        if t.device.type == "cuda" and not torch.cuda.is_available():
            raise exc.ExportError(f"{name} is made on the GPU while the program is captured, which needs one")
        return t

    def _copy(self, t: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cuda" and not torch.cuda.is_available():
            return _C.cuda_stand_in(t)
        return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=self.device).copy_(t)

    def arguments(self, given: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, self.tensor, given)

    def module(self, module: torch.nn.Module) -> None:
        """Moves the tensors of a module, and the devices that its graphs name."""
        for part in module.modules():
            for name, p in part._parameters.items():
                if p is not None:
                    part._parameters[name] = self.tensor(p)  # type: ignore[assignment]
            for name, b in part._buffers.items():
                if b is not None:
                    part._buffers[name] = self.tensor(b)
            for name, value in list(vars(part).items()):
                if isinstance(value, torch.Tensor):
                    setattr(part, name, self.tensor(value))
            if isinstance(part, torch.fx.GraphModule):
                self._graph(part.graph)
                part.recompile()

    def _graph(self, graph: torch.fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target in _ATTENTION:
                _choose_attention_anew(graph, node)
            elif node.op == "call_function":
                node.args = self._named_devices(node.args)
                node.kwargs = self._named_devices(node.kwargs)

    def _named_devices(self, value: Any) -> Any:
        moves = ("cpu", "cuda")
        return torch.fx.node.map_aggregate(
            value, lambda v: self.device if isinstance(v, torch.device) and v.type in moves else v
        )


def _choose_attention_anew(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Attention that was chosen for the device of the export becomes attention of any device."""
    mask, *places = _ATTENTION[node.target]

    def given(place: Any, default: Any) -> Any:
        if isinstance(place, int):
            return node.args[place] if place < len(node.args) else default
        return node.kwargs.get(place, default)

    rest = [p for p in node.users if p.target is not operator.getitem or p.args[1] != 0]
    if any(p.users or p.target is not operator.getitem for p in rest):
        raise exc.ExportError(f"{node.target} was exported for another device, and more than its result is used")
    with graph.inserting_before(node):
        dropout, causal = given(places[0], 0.0), given(places[1], False)
        args = (*node.args[:3], given(mask, None), dropout, causal)
        scale = {"scale": node.kwargs["scale"]} if "scale" in node.kwargs else {}
        result = graph.call_function(_aten.scaled_dot_product_attention.default, args, scale)
    for part in list(node.users):
        if part not in rest:
            part.replace_all_uses_with(result)
        graph.erase_node(part)
    graph.erase_node(node)
