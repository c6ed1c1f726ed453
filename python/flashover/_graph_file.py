"""Captured graphs with their inputs as files that another process reads: JSON, and each tensor's bytes beside it."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

GRAPH = "graph.json"
_NAMED = (torch.dtype, torch.layout, torch.memory_format)
_PLAIN = (type(None), bool, int, str)
_SYMBOLIC = ("sym_min", "sym_max", "sym_float", "sym_not", "sym_ite")


class NotWritable(ValueError):
    """A graph holds something that has no form in a file."""


class Pool:
    """A folder of tensors. Each is written once, however many graphs read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []  # ids stay theirs

    def write(self, t: torch.Tensor) -> dict[str, Any]:
        if t.layout is not torch.strided or t.is_quantized or type(t) not in (torch.Tensor, torch.nn.Parameter):
            raise NotWritable(f"a {type(t).__name__} of layout {t.layout}")
        name = self._names.get(id(t))
        if name is None:
            name = self._names[id(t)] = f"tensor_{len(self._names)}"
            self._kept.append(t)
            storage = t.detach().untyped_storage()
            if len(storage):
                flat = torch.empty(0, dtype=torch.uint8, device=t.device).set_(storage)  # type: ignore[call-overload]
                path = str(self.folder / name)
                torch.from_file(path, shared=True, size=len(storage), dtype=torch.uint8).copy_(flat)
        return {
            "file": name, "bytes": len(t.untyped_storage()), "dtype": str(t.dtype), "device": str(t.device),
            "size": list(t.size()), "stride": list(t.stride()), "offset": t.storage_offset(),
        }  # fmt: skip

    def read(self, facts: dict[str, Any], storages: dict[str, torch.Tensor]) -> torch.Tensor:
        """storages: what was read before for the same graph, so that those of one storage share it again."""
        name = Path(facts["file"]).name
        if name not in storages:
            path, count = str(self.folder / name), facts["bytes"]
            flat = torch.empty(0, dtype=torch.uint8)
            if count:
                flat = torch.from_file(path, shared=False, size=count, dtype=torch.uint8).clone()
            storages[name] = flat.to(facts["device"])
        made = torch.empty(0, dtype=_named(facts["dtype"]), device=facts["device"])
        storage = storages[name].untyped_storage()
        return made.set_(storage, facts["offset"], facts["size"], facts["stride"])  # type: ignore[call-overload,no-any-return]


def _named(text: str) -> Any:
    """torch.float32 of its name."""
    value = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(value, _NAMED):
        raise NotWritable(text)
    return value


def _coded(value: Any) -> Any:
    """Arguments as JSON; what JSON has no form for is an object of one key, its kind."""
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, _NAMED):
        return {"named": str(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, slice):
        return {"slice": [_coded(v) for v in (value.start, value.stop, value.step)]}
    if isinstance(value, list):
        return [_coded(v) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [_coded(v) for v in value]}
    if type(value) in _PLAIN:
        return value
    raise NotWritable(f"an argument of type {type(value).__name__}")


def _decoded(value: Any, nodes: dict[str, fx.Node]) -> Any:
    if isinstance(value, list):
        return [_decoded(v, nodes) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, of),) = value.items()
    if kind == "node":
        return nodes[of]
    if kind == "float":
        return float.fromhex(of)
    if kind == "complex":
        return complex(*map(float.fromhex, of))
    if kind == "named":
        return _named(of)
    if kind == "device":
        return torch.device(of)
    parts = [_decoded(v, nodes) for v in of]
    return slice(*parts) if kind == "slice" else tuple(parts)


def _name_of(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    name = getattr(target, "__name__", "")
    if getattr(operator, name, None) is target:
        return f"operator.{name}"
    if name in _SYMBOLIC:
        return f"torch.{name}"
    raise NotWritable(f"a call of {target}")


def _target_of(name: str) -> Any:
    namespace, _, rest = name.partition(".")
    if namespace == "operator":
        return getattr(operator, rest)
    if namespace == "torch" and rest in _SYMBOLIC:
        return getattr(torch, rest)
    packet, _, overload = rest.rpartition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except AttributeError:
        raise NotWritable(f"the operator {name}, which the program registers itself") from None


def write(folder: Path, module: fx.GraphModule, inputs: Sequence[Any], pool: Pool, **facts: Any) -> None:
    """facts: more that belongs to it, as JSON. The graph's file comes last, so a folder that has it is whole."""
    nodes = []
    for n in module.graph.nodes:
        row: dict[str, Any] = {"op": n.op, "name": n.name, "args": _coded(tuple(n.args))}
        row["kwargs"] = [[k, _coded(v)] for k, v in n.kwargs.items()]
        row["place"] = str(n.meta.get("stack_trace") or "")
        if n.op == "get_attr":
            row["tensor"] = pool.write(getattr(module, str(n.target)))
        elif n.op == "call_function":
            row["target"] = _name_of(n.target)
        nodes.append(row)
    given = [{"tensor": pool.write(v)} if isinstance(v, torch.Tensor) else {"value": _coded(v)} for v in inputs]
    temporary = folder / f"{GRAPH}.part"
    temporary.write_text(json.dumps({"nodes": nodes, "inputs": given, **facts}), encoding="utf-8")
    temporary.replace(folder / GRAPH)


def read(folder: Path, pool: Pool) -> tuple[fx.GraphModule, list[Any], dict[str, Any]]:
    """The graph, its inputs, and the facts."""
    facts = json.loads((folder / GRAPH).read_text(encoding="utf-8"))
    graph, nodes, root, storages = fx.Graph(), {}, torch.nn.Module(), {}  # type: ignore[var-annotated]
    for row in facts.pop("nodes"):
        name = row["name"]
        args = _decoded(row["args"], nodes)
        kwargs = {k: _decoded(v, nodes) for k, v in row["kwargs"]}
        if row["op"] == "get_attr":
            root.register_buffer(name, pool.read(row["tensor"], storages))
            nodes[name] = graph.get_attr(name)
        elif row["op"] == "call_function":
            nodes[name] = graph.create_node("call_function", _target_of(row["target"]), args, kwargs, name=name)
        elif row["op"] == "placeholder":
            nodes[name] = graph.placeholder(name)
        else:
            graph.output(*args)
            continue
        nodes[name].meta["stack_trace"] = row["place"]
    inputs = [
        pool.read(i["tensor"], storages) if "tensor" in i else _decoded(i["value"], nodes)
        for i in facts.pop("inputs")
    ]  # fmt: skip
    return fx.GraphModule(root, graph), inputs, facts
