"""Parts of a captured graph, and stand-alone scripts that run them."""

from __future__ import annotations

import base64
import operator
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

MOST_BYTES = 1 << 16  # of inputs that a script holds as they are


def operators(module: fx.GraphModule) -> list[fx.Node]:
    """The nodes that compute a tensor."""
    return [n for n in module.graph.nodes if n.op == "call_function" and not _is_many(n)]


def operator_of(node: fx.Node) -> fx.Node:
    """What computes a value: not what takes it out of several results."""
    return node.all_input_nodes[0] if node.target is operator.getitem else node


def _is_many(node: fx.Node) -> bool:
    """Its results are taken apart, or it is no tensor."""
    returns = getattr(getattr(node.target, "_schema", None), "returns", None)
    if returns is None:
        return node.target is not operator.getitem
    return len(returns) != 1 or str(returns[0].type) != "Tensor"


def is_number(node: fx.Node) -> bool:
    """It computes a number: a size, above all."""
    returns = getattr(getattr(node.target, "_schema", None), "returns", None)
    if returns is None:
        return node.op == "call_function" and node.target is not operator.getitem
    return len(returns) == 1 and str(returns[0].type) in ("int", "SymInt", "float", "bool", "number")


def _memory_of(node: fx.Node) -> fx.Node:
    """The node whose memory a view shows."""
    while node.op == "call_function" and node.all_input_nodes:
        returns = getattr(getattr(node.target, "_schema", None), "returns", None)
        if not returns or returns[0].alias_info is None:
            break
        node = node.all_input_nodes[0]
    return node


def _writers(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """By the node whose memory it is, the operators that write there."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for n in graph.nodes:
        for argument, given in zip(getattr(getattr(n.target, "_schema", None), "arguments", ()), n.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for one in given if isinstance(given, (list, tuple)) else [given]:
                    if isinstance(one, fx.Node):
                        found.setdefault(_memory_of(one), []).append(n)
    return found


def with_outputs(module: fx.GraphModule, nodes: Sequence[fx.Node]) -> fx.GraphModule:
    """The same graph with these values as results, and nothing that they do not need."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    needed = _ancestors(nodes)
    for n in module.graph.nodes:
        if n.op == "placeholder" or (n.op != "output" and n in needed):
            copies[n] = graph.node_copy(n, lambda m: copies[m])
    graph.output(tuple(copies[n] for n in nodes))
    return fx.GraphModule(module, graph)


def _ancestors(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """These and all that they are computed from, with what writes there."""
    todo, found = list(nodes), set(nodes)
    writers = _writers(nodes[0].graph) if nodes else {}
    while todo:
        node = todo.pop()
        for source in (*node.all_input_nodes, *writers.get(node, ())):
            if source not in found:
                found.add(source)
                todo.append(source)
    return found


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.seen[n] = value.clone() if isinstance(value, torch.Tensor) and n.op == "call_function" else value
        return value


def values(module: fx.GraphModule, inputs: Sequence[Any]) -> dict[fx.Node, Any]:
    """What eager computes at each node."""
    recorder = _Recorder(module)
    recorder.run(*inputs)
    return recorder.seen


def last_of(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Those that none of the others reads."""
    read = {m for n in nodes for m in (n, operator_of(n)) for m in m.all_input_nodes}
    return [n for n in nodes if n not in read]


def before(module: fx.GraphModule, node: fx.Node) -> list[fx.Node]:
    """The calls that lead to `node`, in their order, itself the last; without those that compute numbers."""
    ancestors = _ancestors([node])
    order = [n for n in module.graph.nodes if n in ancestors and n.op == "call_function" and not is_number(n)]
    return [*(n for n in order if n is not node), node]


def part_of(
    module: fx.GraphModule, wanted: Sequence[fx.Node], results: Sequence[fx.Node], known: dict[fx.Node, Any]
) -> tuple[fx.GraphModule, list[Any]]:
    """These calls alone, and what numbers they need; what they read of others is an input, with eager's value."""
    inside = set(wanted) | {operator_of(n) for n in wanted}  # what takes results apart goes with what makes them
    todo = list(inside)
    while todo:
        numbers = [m for m in todo.pop().all_input_nodes if m not in inside and is_number(m)]
        inside |= set(numbers)
        todo += numbers
    order = [n for n in module.graph.nodes if n in inside]
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    given: list[Any] = []
    outside: dict[fx.Node, None] = {}
    for n in order:
        outside |= {m: None for m in n.all_input_nodes if m not in inside}
    for m in outside:
        if m.op != "get_attr":
            copies[m] = graph.placeholder(f"input_{len(given)}")
            given.append(known[m])
    for n in [*(m for m in outside if m.op == "get_attr"), *order]:
        copies[n] = graph.node_copy(n, lambda m: copies[m])
    graph.output(tuple(copies[n] for n in results))
    return fx.GraphModule(module, graph), given


def _plain(t: torch.Tensor, seed: int) -> tuple[torch.Tensor, str] | None:
    """A tensor that lies as this one with numbers like its, and the expression that makes it."""
    extent = 1 + sum((s - 1) * d for s, d in zip(t.size(), t.stride(), strict=True)) if t.numel() else 0
    size, stride, generator = tuple(t.size()), tuple(t.stride()), torch.Generator().manual_seed(seed)
    maker = f"torch.Generator().manual_seed({seed})"
    if t.dtype == torch.bool:
        flat, text = torch.rand(extent, generator=generator) < 0.5, f"(torch.rand({extent}, generator={maker}) < 0.5)"
    elif t.is_floating_point():
        finite = t[t.isfinite()].double()
        mean = round(float(finite.mean()), 6) if finite.numel() else 0.0
        spread = round(float(finite.std()), 6) if finite.numel() > 1 else 1.0
        flat = (torch.randn(extent, generator=generator, dtype=torch.float64) * spread + mean).to(t.dtype)
        text = f"(torch.randn({extent}, generator={maker}, dtype=torch.float64) * {spread} + {mean}).to({t.dtype})"
    elif not t.is_complex() and t.numel():
        low, high = int(t.min()), int(t.max()) + 1
        flat = torch.randint(low, high, (extent,), generator=generator, dtype=t.dtype)
        text = f"torch.randint({low}, {high}, ({extent},), generator={maker}, dtype={t.dtype})"
    else:
        return None
    device = "" if t.device.type == "cpu" else f".to({str(t.device)!r})"
    return flat.as_strided(size, stride).to(t.device), f"{text}.as_strided({size}, {stride}){device}"


def plain_all(given: Sequence[Any]) -> tuple[list[Any], list[str]] | None:
    made = [_plain(t, i) if isinstance(t, torch.Tensor) else (t, repr(t)) for i, t in enumerate(given)]
    if any(m is None for m in made):
        return None
    return [m[0] for m in made if m], [m[1] for m in made if m]


def plainest(
    part: fx.GraphModule, given: list[Any], shows: Callable[[list[Any]], bool]
) -> tuple[list[Any], list[str] | None]:
    """Inputs that a line of text makes, and these lines, where they show it as well as those that were given."""
    made = plain_all(given)
    return made if made and shows(made[0]) else (given, None)


def _bytes_of(value: Any) -> str:
    """A tensor as Python text that has its elements."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    packed = base64.b85encode(zlib.compress(bytes(flat.tolist()))).decode()
    size, stride = tuple(value.size()), tuple(value.stride())
    text = (
        f"torch.frombuffer(bytearray(zlib.decompress(base64.b85decode({packed!r}))), dtype={value.dtype})"
        f".reshape({size}).to({str(value.device)!r})"
    )
    if value.is_contiguous() or not value.numel() or _overlaps(value):
        return f"{text},"
    where = f"dtype={value.dtype}, device={str(value.device)!r}"
    return f"torch.empty_strided({size}, {stride}, {where}).copy_({text}),"


def _overlaps(value: torch.Tensor) -> bool:
    """An element lies in the memory of another one."""
    reach = 1
    for stride, size in sorted((d, s) for s, d in zip(value.size(), value.stride(), strict=True) if s > 1):
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def _lines_of(given: list[Any]) -> list[str]:
    """Inputs as they are; those that are too large for a script as tensors like them."""
    plain = plain_all(given)
    lines = []
    for i, value in enumerate(given):
        large = isinstance(value, torch.Tensor) and value.numel() * value.element_size() > MOST_BYTES
        if large and plain:
            lines.append(f"{plain[1][i]},  # like the one that showed it, which is too large to be here")
        else:
            lines.append(_bytes_of(value) if isinstance(value, torch.Tensor) else f"{value!r},")
    return lines


SCRIPT = '''\
"""{what}

{shows}"""

import base64
import zlib

import torch
from torch import device, inf, nan

import flashover


{program}


inputs = [
{inputs}
]
with torch.no_grad():
    expected = f(*inputs)
    got = flashover.compile(f, {arguments})(*inputs)
for g, e in zip(got, expected):
    torch.testing.assert_close(g, e, equal_nan=True)
print("compiled code and eager agree")
'''


MODULE = """\
class Program(torch.nn.Module):
    def __init__(self):
        super().__init__()
{buffers}

    def forward(self{parameters}):
{body}


f = Program()"""


def script(
    part: fx.GraphModule,
    given: list[Any],
    made_by: list[str] | None,
    what: str,
    *,
    shows: str = "Raises while compiled code and eager differ.",
    options: dict[str, Any] | None = None,
    dynamic: bool = False,
) -> str:
    """A program that runs this graph compiled and not. made_by: expressions that make its inputs; what: its opening
    line; shows: how it tells; dynamic: with symbols for sizes."""
    lines = [f"{expression}," for expression in made_by] if made_by else _lines_of(given)
    # (The body gives those another name whose own is one of Python's, as `input` is.)
    placeholders = [str(n.target) for n in part.graph.nodes if n.op == "placeholder"]
    kept = list(dict.fromkeys(str(n.target) for n in part.graph.nodes if n.op == "get_attr"))
    body = part.graph.python_code("self").src.partition(":\n")[2].rstrip()
    if kept:
        values = zip(kept, _lines_of([getattr(part, name) for name in kept]), strict=True)
        program = MODULE.format(
            buffers="\n".join(f'        self.register_buffer("{name}", {_argument(line)})' for name, line in values),
            parameters="".join(f", {name}" for name in placeholders),
            body="\n".join(f"    {line}" for line in body.splitlines()),
        )
    else:
        program = f"def f({', '.join(placeholders)}):\n{body}"
    return SCRIPT.format(
        what=what.replace("\\", "/").replace('"', "'").replace("\n", " "),
        shows=shows,
        arguments="fullgraph=True" + ", dynamic=True" * dynamic + (f", options={options!r}" if options else ""),
        program=program,
        inputs="\n".join(f"    {line}" for line in lines),
    )


def _argument(line: str) -> str:
    """An element of a list, as the only argument of a call: without what follows its comma."""
    return line.rpartition(",  # ")[0] or line.removesuffix(",")
