"""export(): a call captured whole, as a torch.export.ExportedProgram."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from flashover import exc
from flashover._graph_sizes import names_in
from flashover._program import Bounds, Program, capture, leaf_paths, named_tensors
from flashover._reasons import reason_of
from flashover.fx_graph import Emitter, size_value

_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
}


def _quotient_of_small(function: Callable[..., Any], a: int, b: int) -> int:
    """function(a, b); a division by nothing counts as a size that the program is not for."""
    return function(a, b) if b or function not in (operator.floordiv, operator.mod) else -1


def export(
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = True,
) -> Any:
    """The call model(*args, **kwargs) as a torch.export.ExportedProgram, made from Flashover's capture.

    dynamic_shapes: as torch.export takes it (Dim, Dim.AUTO, ShapesCollection, AdditionalInputs). strict: writes to
    Python objects that outlive the call are errors; False: they are left out, with a warning.
    Raises exc.ExportError, which lists every problem that was found, with the user's line and what helps.
    """
    from torch.export._trace import _process_export_inputs

    module = _as_module(model)
    try:
        args, kwargs, _, dynamic_shapes, verify = _process_export_inputs(module, args, kwargs, dynamic_shapes)
        specs = _specs_by_leaf(module, args, kwargs, dynamic_shapes)
    except torch._dynamo.exc.UserError as error:
        raise exc.ExportError(f"cannot be exported: {error}") from error

    def find_all() -> list[str]:
        return breaks_of(model, args, kwargs)

    changing = {leaf: _marks(spec) for leaf, spec in specs.items()}
    faults: list[str] = []
    while True:
        try:
            program = capture(model, args, kwargs, changing, strict=strict, owner=module, find_all=find_all)
        except exc.ConstraintViolationError as error:
            found = _faults_of_marks(str(error), module, (args, kwargs), changing)
            if not found:
                raise exc.ExportError.of([*faults, str(error)]) from error
            faults += found
        except exc.ExportError as error:
            raise (exc.ExportError.of([*faults, *(error.problems or [str(error)])]) if faults else error) from error
        else:
            break
    if faults:  # what else there is shows where these sizes do not change
        settled = {leaf: {d: s for d, s in spec.items() if d in changing[leaf]} for leaf, spec in specs.items()}
        try:
            _Builder(module, program, args, kwargs, settled).build()
        except exc.ExportError as error:
            faults += error.problems
        raise exc.ExportError.of(faults)
    if not strict and program.data["writes"]:
        warnings.warn("flashover.export leaves out: " + "; ".join(program.data["writes"]), stacklevel=2)
    exported = _Builder(module, program, args, kwargs, specs).build()
    verify(exported)
    return exported


def _as_module(model: Any) -> Any:
    if isinstance(model, torch.nn.Module):
        return model
    if not callable(model):
        raise TypeError(f"a module or Python function can be exported, not {type(model).__name__}")
    module = torch.nn.Module()
    module.forward = model  # type: ignore[method-assign]
    return module


def breaks_of(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Every place where the program cannot be captured, with what helps: a copy runs, part by part."""
    from flashover._compile import Settings, compile_callable

    settings = Settings.checked("eager", False, False, None, None)
    copied, given, named = copy.deepcopy((model, args, kwargs))
    compiled = compile_callable(copied, settings)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compiled(*given, **named)
        except Exception as error:
            warnings.warn(f"flashover.export: the program raised {error!r} in the search for problems", stacklevel=2)
    out: dict[str, None] = {}
    for entry in sorted(compiled.entries(), key=lambda e: e["serial"]):
        if entry["reason"] and not entry["trivial"]:
            row = reason_of(entry["reason"])
            out[f"{entry['where'] or 'somewhere'}: {entry['reason']}\n  {row.title}: {row.hints[0]}"] = None
    return list(out)


# ---- sizes that change ----
def _specs_by_leaf(module: Any, args: Any, kwargs: Any, dynamic_shapes: Any) -> dict[int, dict[int, Any]]:
    """By leaf of the arguments and dimension: what dynamic_shapes says of it."""
    from torch.export import dynamic_shapes as shapes

    if not dynamic_shapes:
        return {}
    combined = shapes._combine_args(module, args, kwargs)
    shapes._check_dynamic_shapes(combined, dynamic_shapes)
    by_id = {id(leaf): i for i, leaf in enumerate(pytree.tree_leaves((args, kwargs)))}
    out: dict[int, dict[int, Any]] = {}

    def visit(path: Any, leaf: Any, spec: Any) -> None:
        if isinstance(leaf, torch.Tensor) and spec:
            pairs = spec.items() if isinstance(spec, dict) else enumerate(spec)
            out.setdefault(by_id[id(leaf)], {}).update({d: s for d, s in pairs if s is not None})

    if not isinstance(dynamic_shapes, dict):
        combined = type(dynamic_shapes)(combined.values())
    shapes._tree_map_with_path(visit, combined, dynamic_shapes, tree_name="inputs")
    return out


def _is_hint(spec: Any, name: str) -> bool:
    return getattr(getattr(spec, "type", None), "name", "") == name


def _marks(spec: dict[int, Any]) -> dict[int, Bounds]:
    out: dict[int, Bounds] = {}
    for dim, how in spec.items():
        if isinstance(how, int) or _is_hint(how, "STATIC"):
            continue
        if hasattr(how, "root"):  # derived of another Dim, which has the bounds
            out[dim] = ("must", None, None)
            continue
        least, most = how.min, how.max
        bounds = (int(least) if least else None, most if isinstance(most, int) else None)
        out[dim] = ("may" if _is_hint(how, "AUTO") else "must", *bounds)
    return out


def _faults_of_marks(error: str, module: Any, given: Any, changing: dict[int, dict[int, Bounds]]) -> list[str]:
    """What a capture says of sizes that are not as dynamic_shapes has them, with what helps; takes their marks away, so
    that the next capture finds the next ones."""
    places = {path: leaf for leaf, path in enumerate(leaf_paths(*given, module.forward))}
    out = []
    fault = re.compile(r"^  - (\S+)\.shape\[(\d+)\] is marked as dynamic, but (.*)$", re.MULTILINE)
    for path, dim, what in fault.findall(error):
        if path in places and changing.get(places[path], {}).pop(int(dim), None):
            asks = "is not in" not in what
            fix = "say Dim.AUTO or Dim.STATIC for it, or change what asks" if asks else "give the Dim other bounds"
            out.append(f"{path}.shape[{dim}] is to change, but {what}\n  {fix[0].upper()}{fix[1:]}.")
    return out


_SAYS_OF_SIZES = (torch.ops.aten._assert_scalar.default, torch.ops.aten.sym_constrain_range_for_size.default)


class _Emitter(Emitter):
    """With torch's words for what a capture says of sizes that follow from data."""

    def __init__(self, graph: Any, data: dict[str, Any]) -> None:
        super().__init__(graph, {**data["graph"], "places": data["places"]})

    def require(self, compare: Callable[[Any, Any], Any], a: Any, b: Any, what: str) -> None:
        if isinstance(a, int) and isinstance(b, int) and compare(a, b):
            return
        holds = self.graph.call_function(compare, (a, b))
        self.graph.call_function(torch.ops.aten._assert_scalar.default, (holds, what))

    def node(self, op: str, args: Sequence[Any], outs: Sequence[int], place: str) -> bool:
        if op == "flashover.size_of_data.default":
            names = (name for name, (value, _, _) in self.description["places"].items() if value == outs[0])
            size = self.graph.call_function(torch.ops.aten.item.default, (self.real(args[0]),))
            self.graph.call_function(torch.ops.aten.sym_constrain_range_for_size.default, (size,), {"min": 0})
            self.require(operator.ge, size, 0, "a size that follows from data is negative")
            self.sizes[next(names)] = self.values[outs[0]] = size
        elif op == "flashover.number.default":
            self.values[outs[0]] = number = self.graph.call_function(torch.ops.aten.item.default, (self.real(args[0]),))
            self._numbers.add(number)
        elif op == "flashover.check_sizes.default":
            a, b, relation, what = args
            compare = (operator.eq, operator.ne, operator.lt, operator.le)[relation]
            self.require(compare, self.real(a), self.real(b), what)
        else:
            return super().node(op, args, outs, place)
        return True


class _Propagate(torch.fx.Interpreter):
    """Runs a graph on fake tensors; each node keeps its value, and which sizes that follow from data it finds."""

    def __init__(self, module: torch.fx.GraphModule, shape_env: Any) -> None:
        super().__init__(module)
        self.shape_env = shape_env

    def run_node(self, n: Any) -> Any:
        from torch.fx.experimental.symbolic_shapes import compute_unbacked_bindings, free_unbacked_symbols

        # What torch's shape functions ask of sizes is no condition of the program: the capture has those. What the
        # graph itself says of sizes that follow from data is one.
        says = n.target in _SAYS_OF_SIZES and bool(free_unbacked_symbols(self.env[n.args[0]]))
        with contextlib.nullcontext() if says else self.shape_env.suppress_guards():
            result = super().run_node(n)
        if n.op != "output":
            n.meta["val"] = result
            if found := compute_unbacked_bindings(self.shape_env, result):
                n.meta["unbacked_bindings"] = found
        return result


class _Builder:
    """An ExportedProgram out of a captured call."""

    def __init__(self, module: Any, program: Program, args: Any, kwargs: Any, specs: dict[int, dict[int, Any]]) -> None:
        self.module, self.program, self.args, self.kwargs = module, program, args, kwargs
        self.specs = specs
        self.graph = torch.fx.Graph()
        self.emitter = _Emitter(self.graph, program.data)
        self.lifted: list[tuple[str, str, torch.Tensor, Any]] = []  # kind, name, tensor, placeholder
        self.user: list[Any] = []  # placeholders, by leaf

    def build(self) -> Any:
        from torch._dispatch.python import enable_python_dispatcher
        from torch._export.non_strict_utils import make_fake_inputs

        shapes = self._dynamic_shapes()
        mode, fake_args, fake_kwargs, equalities, signature, shapes = make_fake_inputs(
            self.module, self.args, self.kwargs, shapes
        )
        fakes = pytree.tree_leaves((fake_args, fake_kwargs))
        self._placeholders()
        self._size_nodes()
        if not self.emitter.nodes():
            raise exc.ExportError("cannot be exported: a graph with operators that have no form in torch.fx")
        self._checks_of_small_sizes()
        outputs = self._outputs()
        self.graph.output(tuple(outputs))
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_function" and node.target is torch.ops.aten.sym_size.int and not node.users:
                self.graph.erase_node(node)
        gm = torch.fx.GraphModule({}, self.graph)
        self._module_stacks()
        with mode, torch.no_grad():
            self._relate_sizes(fakes)
            lifted = [mode.from_tensor(tensor, static_shapes=True) for _, _, tensor, _ in self.lifted]
            with enable_python_dispatcher():  # some operators take symbols for sizes in Python alone
                try:
                    _Propagate(gm, mode.shape_env).run(*lifted, *fakes)
                except Exception as error:
                    raise exc.ExportError(f"cannot be exported: torch's fake tensors fail: {error}") from error
        gm.meta["inline_constraints"] = self._sizes_of_data(gm, mode.shape_env)
        return self._exported(gm, outputs, self._constraints(mode, gm, shapes, equalities, signature))

    # -- sizes --
    def _size_of(self, leaf: int, dim: int) -> Any:
        for argument, sizes in zip(self.program.inputs, self.program.sizes, strict=True):
            if argument.kind == "user" and argument.index == leaf:
                return sizes[dim]
        return None  # the graph does not take it

    def _dynamic_shapes(self) -> Any:
        """What was asked for, but that sizes which were left to the capture are numbers where they are in it."""
        if not self.specs:
            return None
        collection = torch.export.ShapesCollection()
        faults: list[str] = []
        leaves, in_spec = pytree.tree_flatten((self.args, self.kwargs))
        for leaf, spec in self.specs.items():
            settled: dict[int, Any] = {}
            for dim, how in spec.items():
                number = isinstance(self._size_of(leaf, dim), int)
                if number and not isinstance(how, int) and not _is_hint(how, "STATIC"):
                    if not _is_hint(how, "AUTO"):
                        place = f"{self.program.paths[leaf]}.shape[{dim}]"
                        faults.append(f"{place} is to change, but the program takes it for a number")
                    continue
                settled[dim] = how
            if id(leaves[leaf]) in collection._shapes:  # one tensor, given twice
                leaves[leaf] = leaves[leaf].detach()
            collection[leaves[leaf]] = settled
        if faults:
            raise exc.ExportError.of(faults)
        self.args, self.kwargs = pytree.tree_unflatten(leaves, in_spec)
        return collection.dynamic_shapes(self.module, self.args, self.kwargs)

    def _symbol_places(self) -> Iterator[tuple[str, int, int, Any]]:
        """(symbol or "", leaf, dim, size) of each size of the arguments that is none or not always the same number."""
        for argument, sizes in zip(self.program.inputs, self.program.sizes, strict=True):
            for dim, size in enumerate(sizes):
                if not isinstance(size, int):
                    if argument.kind != "user":
                        raise exc.ExportError(f"cannot be exported: a size of {argument.name} follows from others")
                    yield (size[1] if size[0] == "var" else ""), argument.index, dim, size

    def _size_nodes(self) -> None:
        for symbol, leaf, dim, _ in self._symbol_places():
            if symbol and symbol not in self.emitter.sizes:
                node = self.graph.call_function(torch.ops.aten.sym_size.int, (self.user[leaf], dim))
                self.emitter.sizes[symbol] = node

    def _checks_of_small_sizes(self) -> None:
        """torch's export takes no size for 0 or 1; where the capture is not for those, the graph says so itself."""
        for relation, a, b, text in self.program.data["facts"]:
            compare = _RELATIONS[relation]
            for size in (0, 1):
                sizes = dict.fromkeys(self.emitter.sizes, size)
                left, right = (size_value(e, sizes, _quotient_of_small) for e in (a, b))
                if compare(left, right):
                    continue
                what = f"the program was captured for sizes with {text}"
                self.emitter.require(compare, self.emitter.size(a), self.emitter.size(b), what)
                break

    def _sizes_of_data(self, gm: torch.fx.GraphModule, shape_env: Any) -> dict[Any, Any]:
        """The ranges of sizes that follow from data, by torch's symbols."""
        found = (n.meta.get("unbacked_bindings", {}) for n in gm.graph.nodes)
        return {symbol: shape_env.var_to_range[symbol] for bindings in found for symbol in bindings}

    def _relate_sizes(self, fakes: list[Any]) -> None:
        """What the capture found of sizes, told to torch's: equal ones, and what holds of them in each call."""
        sizes: dict[str, Any] = {}

        def value(expression: Any) -> Any:
            return size_value(expression, sizes, lambda function, a, b: function(a, b))

        for symbol, leaf, dim, _ in self._symbol_places():
            if symbol:
                sizes.setdefault(symbol, fakes[leaf].shape[dim])
        for _, leaf, dim, size in self._symbol_places():
            torch._check(fakes[leaf].shape[dim] == value(size))
        bounds = self._bounds()
        for relation, a, b, _ in self.program.data["facts"]:
            if not self._follows_from_bounds(relation, a, b, bounds):
                torch._check(_RELATIONS[relation](value(a), value(b)))

    def _bounds(self) -> dict[str, range]:
        """The sizes that were asked for, by symbol, where they are few enough to look at each."""
        most = 4096
        found = {}
        for symbol, leaf, dim, _ in self._symbol_places():
            how = self.specs.get(leaf, {}).get(dim)
            least, last = getattr(how, "min", None), getattr(how, "max", None)
            if symbol and isinstance(least, int) and isinstance(last, int) and last - least < most:
                found[symbol] = range(least, last + 1)
        return found

    def _follows_from_bounds(self, relation: str, a: Any, b: Any, bounds: dict[str, range]) -> bool:
        """Whether a fact of one size is so within its bounds: torch, whose ranges of quotients are wider, would ask for
        narrower ones."""
        names = {name for e in (a, b) for name in names_in(e)}
        if len(names) != 1 or not names <= bounds.keys():
            return False
        (name,) = names
        values = ([size_value(e, {name: size}, _quotient_of_small) for e in (a, b)] for size in bounds[name])
        return all(_RELATIONS[relation](*sides) for sides in values)

    def _constraints(self, mode: Any, gm: Any, shapes: Any, equalities: Any, signature: Any) -> Any:
        from torch._export.non_strict_utils import make_constraints, produce_guards_and_solve_constraints
        from torch.export.dynamic_shapes import _combine_args
        from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

        try:
            produce_guards_and_solve_constraints(mode, gm, shapes, equalities, signature)
            combined = _combine_args(self.module, self.args, self.kwargs)
            return make_constraints(mode, gm, combined, shapes, len(self.lifted))
        except (ConstraintViolationError, ValueError) as error:
            raise exc.ExportError(f"cannot be exported: {error}") from error

    # -- inputs and results --
    def _placeholders(self) -> None:
        used: set[str] = set()

        def placeholder(name: str) -> Any:
            name = re.sub(r"\W+", "_", name).strip("_") or "arg"
            while name in used:
                name += "_1"
            used.add(name)
            return self.graph.placeholder(name)

        seen: dict[int, Any] = {}
        for kind, name, tensor, _ in named_tensors(self.module):
            if id(tensor) not in seen:
                seen[id(tensor)] = node = placeholder(f"{kind[0]}_{name}")
                self.lifted.append((kind, name, tensor, node))
        self.lifted.sort(key=lambda row: row[0] != "parameter")
        ordered = [row[3] for row in self.lifted]
        for before, node in itertools.pairwise(ordered):
            before.append(node)
        for name, tensor in self.program.tensors.items():
            if id(tensor) not in seen:
                seen[id(tensor)] = node = placeholder(f"c_{name}")
                self.lifted.append(("constant", name, tensor, node))
        self.user = [placeholder(path) for path in self.program.paths]
        self.by_name = {name: node for _, name, _, node in self.lifted}
        description = self.program.data["graph"]
        for (value, _, _), argument in zip(description["inputs"], self.program.inputs, strict=True):
            self.emitter.values[value] = (
                self.user[argument.index] if argument.kind == "user" else self.by_name[argument.name]
            )

    def _outputs(self) -> list[Any]:
        out = []
        for result in self.program.results:
            if result.kind == "output":
                value = self.program.data["graph"]["outputs"][result.index]
                node = self.emitter.values[value]
                if not isinstance(node, torch.fx.Node):  # a number that became a tensor
                    node = self.graph.call_function(torch.ops.aten.scalar_tensor.default, (node,))
                out.append(node)
            elif result.kind == "user":
                out.append(self.user[result.index])
            else:
                out.append(result.value if result.kind == "value" else self.by_name[result.name])
        return out

    def _module_stacks(self) -> None:
        """Which modules each node was called in: for torch.export.unflatten."""
        classes = {name: _qualified(type(m)) for name, m in self.module.named_modules()}
        last: dict[str, tuple[str, str]] = {"L__self__": ("", classes[""])}
        for node in self.graph.nodes:
            if node.op != "call_function":
                continue
            place = node.meta.get("stack_trace") or ""
            inside = place.rpartition(" in self")[2] if " in self" in place else None
            if inside is not None:
                path = re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", inside).strip(".")
                parts = path.split(".") if path else []
                chain = [".".join(parts[: i + 1]) for i in range(len(parts))]
                last = {"L__self__": ("", classes[""])}
                last.update({"L__self___" + c.replace(".", "_"): (c, classes[c]) for c in chain if c in classes})
            node.meta["nn_module_stack"] = dict(last)

    def _exported(self, gm: Any, outputs: list[Any], constraints: Any) -> Any:
        from torch._export.verifier import TrainingIRVerifier
        from torch.export import graph_signature as s
        from torch.export.exported_program import ExportedProgram, ModuleCallEntry, ModuleCallSignature

        kinds = {
            "parameter": s.InputKind.PARAMETER,
            "buffer": s.InputKind.BUFFER,
            "constant": s.InputKind.CONSTANT_TENSOR,
        }
        state: dict[str, Any] = {}
        constants: dict[str, Any] = {}
        for _, name, tensor, persistent in named_tensors(self.module):
            (state if persistent else constants)[name] = tensor
        specs = []
        for kind, name, tensor, node in self.lifted:
            persistent = name in state if kind == "buffer" else None
            specs.append(s.InputSpec(kinds[kind], s.TensorArgument(node.name), name, persistent))
            if kind == "constant":
                constants[name] = tensor
        for node, leaf in zip(self.user, self.program.leaves, strict=True):
            tensor = isinstance(leaf, torch.Tensor)
            argument = s.TensorArgument(node.name) if tensor else s.ConstantArgument(node.name, leaf)
            specs.append(s.InputSpec(s.InputKind.USER_INPUT, argument, None))
        results = []
        for o in outputs:
            node = isinstance(o, torch.fx.Node)
            argument = s.TensorArgument(o.name) if node else s.ConstantArgument("", o)
            results.append(s.OutputSpec(s.OutputKind.USER_OUTPUT, argument, None))
        call = ModuleCallSignature([], [], self.program.in_spec, self.program.out_spec, self._argument_names())
        return ExportedProgram(
            root=gm,
            graph=gm.graph,
            graph_signature=s.ExportGraphSignature(specs, results),
            state_dict=state,
            range_constraints=constraints,
            module_call_graph=[ModuleCallEntry("", call)],
            example_inputs=(self.args, self.kwargs),
            constants=constants,
            verifiers=[TrainingIRVerifier],
        )

    def _argument_names(self) -> list[str]:
        signature = inspect.signature(self.module.forward)
        names: list[str] = []
        for name, value in signature.bind_partial(*self.args).arguments.items():
            several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            names.extend([f"{name}_{i}" for i in range(len(value))] if several else [name])
        return [*names, *self.kwargs]


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
