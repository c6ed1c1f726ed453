"""package() and load(): programs in one file that runs without the compiler."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from flashover import _C, _devices, _targets, exc
from flashover import options as options_table
from flashover._signature import SUFFIX, check_signature

if TYPE_CHECKING:  # (capture is for writing: who loads does without)
    from flashover._program import Argument, Bounds, Program

# Types of containers whose context may name modules to be imported: a file may not say what is imported.
_REFUSED = ("collections.defaultdict",)


def package(
    programs: Any,
    path: str | os.PathLike[str],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    targets: Sequence[str] = (_targets.NATIVE,),
    prepare: bool = True,
) -> None:
    """Writes programs into one file: a torch.export.ExportedProgram (Flashover's or torch's), or several by name.

    Equal weights are stored once; mode, options: as compile()'s.
    targets: the kinds of machines that the file holds machine code for, "native" (this one), "avx512", "avx2",
    "scalar", and GPUs, which need not be here: "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120". Where it is
    loaded, the best one that the machine has is taken. For a GPU everything that the program has on the CPU is there.
    prepare: what is computed of weights alone (packed matrices) lies in the file, too: on the same processor, with as
    many threads, the first call finds it; the file is up to twice as large.
    """
    named = dict(programs) if isinstance(programs, Mapping) else {"forward": programs}
    if not named or not all(isinstance(name, str) and name for name in named):
        raise TypeError("package() takes an ExportedProgram, or a dict of such by name")
    values = options_table.resolve(mode, options)
    writer = _Writer()
    levels = _targets.ordered(targets)
    for name, program in named.items():
        if not isinstance(program, torch.export.ExportedProgram):
            raise TypeError(
                f"package() takes ExportedPrograms (flashover.export makes them), not {type(program).__name__}"
            )
        native = _devices.kind_of(program)
        of_device: dict[str, list[str]] = {}
        for level in levels:
            of_device.setdefault(_targets.device_of(level, native), []).append(level)
        for device, of_it in of_device.items():
            writer.add(name, program, of_it, device)
    writer.compile(values)
    writer.write(os.fspath(path), prepare)


def load(
    path: str | os.PathLike[str],
    *,
    verify: bool = True,
    signed_by: bytes | str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
) -> Package:
    """Loads a package. It is machine code that this process runs: load what you trust.

    The file is checked before anything of it runs. verify=False leaves out the checksum of the weights' bytes, which
    takes the time of reading them all.
    signed_by: a public key (PEM, or a file with it): the file must be what its owner signed (sign_package), which is
    looked at before anything else, by the signature in PATH.sig.
    device: where it runs. Without it: on the first CUDA device, where there is one and the package has code for CUDA.
    """
    where = None if device is None else torch.device(device)
    if signed_by is None:
        return Package(_C.Package.load(os.fspath(path), verify, where))
    with open(path, "rb") as file:
        check_signature(file, os.fspath(path) + SUFFIX, signed_by)
        # The same file, whatever has the name by now.
        return Package(_C.Package.load(f"/proc/self/fd/{file.fileno()}", verify, where))


def package_info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a package says of itself: entries, arguments, sizes, weights, machine. Nothing of it runs."""
    return _C.describe_package(os.fspath(path))


def save_cache(path: str | os.PathLike[str], *, max_mb: int = 2048) -> int:
    """Writes the disk cache of this process into one file, what was used last first; how many entries.

    Another folder, user or machine of the same kind takes it by load_cache(); what was made by other versions, or for
    another machine, lies there unused.
    """
    return _C.save_cache(os.fspath(path), max_mb << 20)


def load_cache(path: str | os.PathLike[str]) -> int:
    """Puts what save_cache() wrote into the disk cache of this process; how many entries. It is machine code that
    later compilations run: load what you trust."""
    return _C.load_cache(os.fspath(path))


class AotCompiled:
    """What compiled.aot_compile((args, kwargs)) gives: called like the function, kept by save_compiled_function()."""

    def __init__(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, str]
    ) -> None:
        from flashover._export import export

        with tempfile.TemporaryDirectory(prefix="flashover") as folder:
            path = os.path.join(folder, "function.flash")
            writer = _Writer()
            program = export(function, args, kwargs)
            writer.add("forward", program, [_targets.NATIVE], _devices.kind_of(program))
            writer.compile(options)
            writer.write(path, prepare=True)
            with open(path, "rb") as file:
                self._bytes = file.read()
            self._package = load(path)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._package(*args, **kwargs)

    def save_compiled_function(self, path: str | os.PathLike[str]) -> None:
        """Writes the package; flashover.load(path) gives it back."""
        with open(path, "wb") as file:
            file.write(self._bytes)


class Entry:
    """One entry of a package: called as the program that it was made from."""

    def __init__(self, native: Any, index: int, description: dict[str, Any]) -> None:
        self._native, self._index, self._description = native, index, description
        self.name: str = description["name"]
        self.target: str = description["target"]  # the machines that its code is for
        self.device = torch.device(description["device"])
        self.prepared: int = description["prepared"]  # tensors made of weights alone that calls find in the file
        self._arguments_spec = _spec_of(description["arguments_spec"])
        self._results_spec = _spec_of(description["results_spec"])
        leaves = self._arguments_spec.num_leaves
        like = pytree.tree_structure(((None,) * leaves, {}), is_leaf=lambda leaf: leaf is None)
        plain = like == self._arguments_spec and all(tensor for _, tensor, _ in description["arguments"])
        self._plain = leaves if plain else -1  # so many tensors, one after the other
        self._values = [json.loads(v) if kind == "value" else None for kind, v in description["results"]]

    def __repr__(self) -> str:
        takes = ", ".join(f"{name}: {type_}" for name, type_ in self.arguments.items())
        return f"<entry {self.name}({takes})>"

    @property
    def arguments(self) -> dict[str, str]:
        """The tensors that it takes, by name: "f32[s0,4]"; s0 is a size that may change."""
        found = {}
        for (kind, index), type_ in self._description["inputs"]:
            if kind == "argument":
                found[index] = type_
        rows = enumerate(self._description["arguments"])
        return {name: found.get(i, "any") for i, (name, tensor, _) in rows if tensor}

    @property
    def guards(self) -> list[str]:
        """What holds of the sizes of each call."""
        return list(self._description["guards"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == self._plain and not kwargs and all(isinstance(a, torch.Tensor) for a in args):
            return self._results(list(args))
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._arguments_spec:
            leaves = self._reordered(args, kwargs)
        tensors = []
        for leaf, (name, is_tensor, value) in zip(leaves, self._description["arguments"], strict=True):
            if is_tensor != isinstance(leaf, torch.Tensor):
                raise exc.UserError(f"entry {self.name}: the argument {name} is {'a' if is_tensor else 'no'} tensor")
            if is_tensor:
                tensors.append(leaf)
            elif _constant(leaf) != value:
                raise exc.UserError(f"entry {self.name}: the argument {name} is {value} in the program, not {leaf!r}")
        return self._results(tensors)

    def _results(self, tensors: list[torch.Tensor]) -> Any:
        results = self._native.run(self._index, tensors)
        for i, (kind, _) in enumerate(self._description["results"]):
            if kind == "value":
                results[i] = _value(self._values[i])
        return pytree.tree_unflatten(results, self._results_spec)

    def _reordered(self, args: Any, kwargs: Any) -> list[Any]:
        """Keywords in another order."""
        wanted = self._arguments_spec
        names = wanted.child(1).context if hasattr(wanted, "child") else wanted.children_specs[1].context
        if set(names) == set(kwargs):
            leaves, spec = pytree.tree_flatten((args, {name: kwargs[name] for name in names}))
            if spec == wanted:
                return leaves
        raise exc.UserError(
            f"entry {self.name} takes arguments like {wanted}, not like {pytree.tree_structure((args, kwargs))}"
        )


class Package:
    """A loaded package. Called itself where it has one entry; package["decode"] is one of several."""

    def __init__(self, native: Any) -> None:
        self._native = native
        description = native.describe()
        self.torch_version: str = description["torch"]
        self.entries = {d["name"]: Entry(native, i, d) for i, d in enumerate(description["entries"])}

    def __repr__(self) -> str:
        return f"<package of {', '.join(map(repr, self.entries.values()))}>"

    def __getitem__(self, name: str) -> Entry:
        if name not in self.entries:
            raise KeyError(f"no entry {name!r}; there are {', '.join(self.entries)}")
        return self.entries[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.entries) != 1:
            raise exc.UserError(f"the package has several entries, name one: {', '.join(self.entries)}")
        return next(iter(self.entries.values()))(*args, **kwargs)

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights as calls that begin now see them. Not to be written: exchange() gives others."""
        return self._native.weights()  # type: ignore[no-any-return]

    def exchange(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copies these values in, by name, for all calls that begin from now on; each call sees all or none of them."""
        self._native.exchange(dict(weights))


# ---- leaves that are no tensors, and pytrees ----
def _constant(leaf: Any) -> str:
    plain = leaf is None or isinstance(leaf, (bool, int, float, str))
    return json.dumps(leaf if plain else {"repr": repr(leaf)})


def _value(leaf: Any) -> Any:
    if isinstance(leaf, dict):  # torch.float32, torch.strided ...
        return getattr(torch, leaf["repr"].removeprefix("torch."), leaf["repr"])
    return leaf


def _check_spec(spec: Any) -> None:
    if isinstance(spec, dict):
        if spec.get("type") in _REFUSED or "__enum__" in spec:
            raise exc.UserError(f"a package may not hold {spec.get('type') or 'an enumeration'} among its containers")
        for value in spec.values():
            _check_spec(value)
    elif isinstance(spec, list):
        for value in spec:
            _check_spec(value)
    elif isinstance(spec, str) and "__enum__" in spec:
        raise exc.UserError("a package may not hold an enumeration among its containers")


def _spec_of(text: str) -> Any:
    try:
        _check_spec(json.loads(text))
        return pytree.treespec_loads(text)
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise exc.UserError(
            f"the package's containers are not known here ({error}): import what defines them before it is loaded"
        ) from error


def _spec_text(spec: Any) -> str:
    text = pytree.treespec_dumps(spec)
    _check_spec(json.loads(text))
    return text


# ---- writing ----
def _text_of(expression: Any) -> str:
    """An expression over sizes (entry/python_graph.h) as sym::parse reads it."""
    if isinstance(expression, int):
        return str(expression)
    kind, operands = expression
    if kind == "var":
        return str(operands)
    texts = [_text_of(o) for o in operands]
    if kind in ("min", "max"):
        return f"{kind}({', '.join(texts)})"
    return "(" + {"%": " mod "}.get(kind, f" {kind} ").join(texts) + ")"


class _Writer:
    """The parts of a package, as they are put together."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.programs: list[str] = []  # by entry: its text
        self.targets: list[Sequence[str]] = []
        self.entries: list[dict[str, Any]] = []
        self.plans: list[tuple[str, bytes]] = []

    def compile(self, values: Mapping[str, str]) -> None:
        """Makes the plans of all entries for each of their targets, the best one first."""
        for target in dict.fromkeys(target for targets in self.targets for target in targets):
            wanted = [i for i, targets in enumerate(self.targets) if target in targets]
            plans = _targets.plans_for(target, [self.programs[i] for i in wanted], values)
            for entry, plan in zip((self.entries[i] for i in wanted), plans, strict=True):
                section = f"plan {target} {entry['name']}"
                self.plans.append((section, plan))
                entry["plans"].append(section)

    def add(self, name: str, exported: Any, targets: Sequence[str], device: str) -> None:
        """targets: the best one first, all for this kind of device."""
        program, sizes = _program_of(exported, device)
        self.programs.append(program.data["text"])
        self.targets.append(targets)
        tensors = {n: self._weight(name, n, t) for n, t in program.tensors.items()}

        def binding(a: Argument) -> tuple[str, Any]:
            if a.kind == "user":
                return "argument", a.index
            if a.kind == "output":
                return "output", a.index
            return ("value", _constant(a.value)) if a.kind == "value" else ("weight", tensors[a.name])

        counts = any("as_strided" in node[0] for node in program.data["graph"]["nodes"])
        arguments = []
        for path, leaf in zip(program.paths, program.leaves, strict=True):
            tensor = isinstance(leaf, torch.Tensor)
            offset = leaf.storage_offset() if tensor and counts else -1
            arguments.append((path, tensor, "" if tensor else _constant(leaf), offset))
        facts = [(relation, _text_of(a), _text_of(b)) for relation, a, b, _ in program.data["facts"]]
        self.entries.append(
            {
                "name": name,
                "device": device,
                "plans": [],
                "inputs": [binding(a) for a in program.inputs],
                "arguments": arguments,
                "results": [binding(a) for a in program.results],
                "guards": list(dict.fromkeys([*facts, *_relations(program, sizes)])),
                "arguments_spec": _spec_text(program.in_spec),
                "results_spec": _spec_text(program.out_spec),
            }
        )

    def _weight(self, entry: str, name: str, tensor: torch.Tensor) -> int:
        """The number of a weight: one for all entries that have it under this name."""
        for known in (name, f"{entry}.{name}"):
            if known not in self.weights:
                self.weights[known] = tensor.detach()
                return len(self.weights) - 1
            if _is_same(self.weights[known], tensor):
                return list(self.weights).index(known)
        raise exc.ExportError(f"two weights of entry {entry} are named {name}")

    def write(self, path: str, prepare: bool) -> None:
        _C.write_package(path, self.entries, list(self.weights.items()), self.plans, prepare)


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if (a.dtype, a.shape, a.stride(), a.device) != (b.dtype, b.shape, b.stride(), b.device):
        return False
    return a.data_ptr() == b.data_ptr() or torch.equal(a, b.detach())


def _user_sizes(exported: Any) -> list[tuple[Any, ...]]:
    """By leaf of the arguments: the sizes that torch.export found, numbers or sympy expressions."""
    nodes = {n.name: n for n in exported.graph.nodes if n.op == "placeholder"}
    out: list[tuple[Any, ...]] = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind is torch.export.graph_signature.InputKind.USER_INPUT:
            value = nodes[spec.arg.name].meta.get("val")
            shape = value.shape if isinstance(value, torch.Tensor) else ()
            out.append(tuple(s.node.expr if isinstance(s, torch.SymInt) else s for s in shape))
    return out


def _bounds(expression: Any, exported: Any) -> tuple[int | None, int | None]:
    found = exported.range_constraints.get(expression)
    if found is None:
        return None, None
    least, most = found.lower, found.upper
    return (int(least) if least > 0 else None), (int(most) if most.is_Integer else None)


def _program_of(exported: Any, device: str) -> tuple[Program, list[Any]]:
    """Captures an exported program again; and what it says of sizes: (leaf, dim, expression, least, most).

    device: the kind of device that it is captured for. The tensors of what is returned are the program's own.
    """
    from flashover._program import capture

    if exported.example_inputs is None:
        raise exc.ExportError("the program has no example inputs: export it again, or set .example_inputs")
    args, kwargs = exported.example_inputs
    changing: dict[int, dict[int, Bounds]] = {}
    sizes = []
    for leaf, shape in enumerate(_user_sizes(exported)):
        for dim, size in enumerate(shape):
            if not isinstance(size, int):
                least, most = _bounds(size, exported)
                plain = getattr(size, "is_Symbol", False)
                changing.setdefault(leaf, {})[dim] = ("must", least, most) if plain else ("must", None, None)
                sizes.append((leaf, dim, size, least, most))
    module = exported.module(check_guards=False)
    mover = None if device == _devices.kind_of(exported) else _devices.Mover(device)
    if mover:
        mover.module(module)
        args, kwargs = mover.arguments((args, kwargs))
    try:
        program = capture(module.forward, args, kwargs, changing, owner=module)
    except exc.ConstraintViolationError as error:
        raise exc.ExportError.of([str(error)]) from error
    if mover:
        program.tensors = {name: mover.original(name, t) for name, t in program.tensors.items()}
    return program, sizes


def _relations(program: Program, sizes: Sequence[tuple[Any, ...]]) -> list[tuple[str, str, str]]:
    """What the exported program says of sizes and the capture did not ask: bounds, equal ones, a*n + b."""
    texts: dict[tuple[int, int], str] = {}
    for argument, shape in zip(program.inputs, program.sizes, strict=True):
        if argument.kind == "user":
            texts.update({(argument.index, dim): _text_of(size) for dim, size in enumerate(shape)})
    roots: dict[Any, str] = {}
    for leaf, dim, size, _, _ in sizes:
        if getattr(size, "is_Symbol", False) and (leaf, dim) in texts:
            roots.setdefault(size, texts[leaf, dim])
    out = []
    for leaf, dim, size, least, most in sizes:
        if (leaf, dim) not in texts:
            continue
        text = texts[leaf, dim]
        if least is not None:
            out.append(("<=", str(least), text))
        if most is not None:
            out.append(("<=", text, str(most)))
        symbols = list(size.free_symbols)
        if len(symbols) == 1 and symbols[0] in roots:
            polynomial = size.as_poly(symbols[0])
            if polynomial is None or polynomial.degree() != 1:
                raise exc.ExportError(f"the size {size} is no linear one of another")
            factor, rest = (int(c) for c in polynomial.all_coeffs())
            wanted = f"({factor}*{roots[symbols[0]]} + {rest})"
            if wanted != f"(1*{text} + 0)":
                out.append(("==", text, wanted))
        elif len(symbols) != 1 or size not in symbols:
            raise exc.ExportError(f"the size {size} follows from others that the program does not take")
    return out
