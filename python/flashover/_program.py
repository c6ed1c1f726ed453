"""A call captured whole, for programs that serve other calls, too: its inputs, results and sizes by what they are."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from flashover import _C, exc

SIZES = "torch._dynamo.mark_dynamic"
# What an argument or a result may be beside tensors: it is part of the program, as it was.
CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True)
class Argument:
    """What stands for an input of the graph, or for a result: kind is "user" (index: which leaf of the arguments),
    "parameter", "buffer", "constant" (name), "output" (index: which output of the graph), or "value"."""

    kind: str
    index: int = -1
    name: str = ""
    value: Any = None


@dataclass
class Program:
    """What was captured. inputs: by graph input; results: by leaf of the result."""

    data: dict[str, Any]
    leaves: list[Any]  # of the arguments, as they were given
    paths: list[str]  # of the leaves, for people
    in_spec: Any
    out_spec: Any = None
    inputs: list[Argument] = field(default_factory=list)
    results: list[Argument] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)  # parameters, buffers and constants, by name
    persistent: dict[str, bool] = field(default_factory=dict)  # of buffers

    @property
    def sizes(self) -> list[list[Any]]:
        """By graph input: its sizes, numbers or expressions (entry/python_graph.h)."""
        return self.data["input_sizes"]  # type: ignore[no-any-return]


def callable_of(target: Any) -> Any:
    """The compiled callable whose calls are captured whole, and never run."""

    def make(function: Any, this: Any = None, through_call: bool = False) -> Any:
        name = getattr(target, "__qualname__", type(target).__name__)
        options: dict[str, str] = {}
        return _C.CompiledCallable(
            function, this, through_call=through_call, name=name, backend="export", fullgraph=True, dynamic=False,
            options=options,
        )  # fmt: skip

    if inspect.isfunction(target):
        return make(target)
    if inspect.ismethod(target) and inspect.isfunction(target.__func__):
        return make(target.__func__, target.__self__)
    if inspect.isfunction(type(target).__call__):
        return make(None, target, True)
    raise TypeError(f"a module or Python function can be exported, not {type(target).__name__}")


def named_tensors(module: Any) -> Iterator[tuple[str, str, torch.Tensor, bool]]:
    """(kind, name, tensor, whether it is part of the state dict) of all parameters and buffers."""
    if not isinstance(module, torch.nn.Module):
        return
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield "parameter", name, parameter, True
    for prefix, part in module.named_modules(remove_duplicate=False):
        for name, buffer in part._buffers.items():
            if buffer is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield "buffer", path, buffer, name not in part._non_persistent_buffers_set


def leaf_paths(args: tuple[Any, ...], kwargs: dict[str, Any], function: Any) -> list[str]:
    names = list(inspect.signature(function).parameters.values())
    plain = [p.name for p in names if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    out = []
    for path, _ in pytree.tree_flatten_with_path((args, kwargs))[0]:
        (which, first, *rest) = path
        key = first.idx if which.idx == 0 else first.key
        if which.idx == 0:
            key = plain[key] if key < len(plain) else f"args[{key}]"
        out.append(f"{key}{pytree.keystr(tuple(rest))}")
    return out


Bounds = tuple[str, int | None, int | None]  # how a size may change ("must", "may"), its bounds


def _fresh(leaf: Any, changing: dict[int, Bounds]) -> Any:
    """A tensor of its own, with the marks of sizes that change; other leaves as they are."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    out = leaf.detach()
    for dim, (how, least, most) in changing.items():
        if how == "may":
            torch._dynamo.maybe_mark_dynamic(out, dim)
        else:
            bounds = {k: v for k, v in (("min", least), ("max", most)) if v is not None}
            torch._dynamo.mark_dynamic(out, dim, **bounds)
    return out


def _check_leaves(paths: list[str], leaves: list[Any]) -> None:
    for path, leaf in zip(paths, leaves, strict=True):
        if not isinstance(leaf, (torch.Tensor, *CONSTANTS)):
            raise exc.ExportError(
                f"the argument {path} is a {type(leaf).__name__}, which is neither a tensor nor a container that "
                "torch.utils._pytree knows: pass its tensors, or register it (torch.export.register_dataclass)"
            )


@contextlib.contextmanager
def _without_fast_paths() -> Iterator[None]:
    """Those of transformer layers are one operator each that knows no sizes which change; torch.export has none."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def capture(
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    changing: dict[int, dict[int, Bounds]] | None = None,
    *,
    strict: bool = True,
    owner: Any = None,
    find_all: Callable[[], list[str]] | None = None,
) -> Program:
    """Captures target(*args, **kwargs) without gradients. changing: sizes that change, by leaf of the arguments.

    owner: the module whose parameters and buffers have names. Raises exc.ExportError, which lists every problem.
    """
    leaves, in_spec = pytree.tree_flatten((args, kwargs))
    function = target.forward if isinstance(target, torch.nn.Module) else target
    paths = leaf_paths(args, kwargs, function)
    _check_leaves(paths, leaves)
    given = [_fresh(leaf, (changing or {}).get(i, {})) for i, leaf in enumerate(leaves)]
    fresh_args, fresh_kwargs = pytree.tree_unflatten(given, in_spec)
    try:
        with torch.no_grad(), _without_fast_paths():
            data = callable_of(target).program(*fresh_args, **fresh_kwargs)
    except exc.Unsupported as error:
        found = find_all() if find_all else []
        raise exc.ExportError.of(found or [str(error)]) from error
    program = Program(data, leaves, paths, in_spec)
    problems = [*data["problems"], *(data["writes"] if strict else [])]
    by_user = {id(t): i for i, t in enumerate(given) if isinstance(t, torch.Tensor)}
    for fact, tensor in data["seen"]:
        if tensor in by_user:
            problems.append(f"what runs depends on more than the type of {paths[by_user[tensor]]}: {fact}")
    if data["static_because"]:
        problems.append(f"sizes that change cannot be symbols: {data['static_because']}")
    if problems:
        raise exc.ExportError.of(problems)
    _name_inputs(program, given, owner if owner is not None else target)
    _name_results(program)
    return program


def _name_inputs(program: Program, given: list[Any], owner: Any) -> None:
    known: dict[int, Argument] = {}
    for kind, name, tensor, persistent in named_tensors(owner):
        known.setdefault(id(tensor), Argument(kind, name=name))
        program.persistent[name] = persistent
    known.update({id(t): Argument("user", i) for i, t in enumerate(given) if isinstance(t, torch.Tensor)})
    constants = 0
    for tensor in program.data["inputs"]:
        argument = known.get(id(tensor))
        if argument is None:
            argument = known[id(tensor)] = Argument("constant", name=f"lifted_tensor_{constants}")
            constants += 1
        if argument.kind != "user":
            program.tensors[argument.name] = tensor
        program.inputs.append(argument)
    program.data["known"] = known


def _name_results(program: Program) -> None:
    known = program.data.pop("known")
    known.update({id(t): Argument("output", i) for i, t in enumerate(program.data["markers"])})
    leaves, program.out_spec = pytree.tree_flatten(program.data["result"])
    for path, leaf in zip(pytree.tree_flatten_with_path(program.data["result"])[0], leaves, strict=True):
        if id(leaf) in known:
            argument = known[id(leaf)]
            if argument.kind in ("parameter", "buffer", "constant"):
                program.tensors[argument.name] = leaf
            program.results.append(argument)
        elif isinstance(leaf, CONSTANTS):
            program.results.append(Argument("value", value=leaf))
        else:
            raise exc.ExportError(
                f"the result{pytree.keystr(path[0])} is a {type(leaf).__name__}, which is neither a tensor nor a "
                "container that torch.utils._pytree knows: return its tensors (transformers: use_cache=False)"
            )
