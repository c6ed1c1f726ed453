"""Triton kernels of the program's own in captured code: each launch is one call of an operator that is made for it.

`launch` stands in for the `run` of Triton's kernels while a call is captured, and is looked into like the program: so
the grid, its sizes and the constants are known and guarded as in any other code. The operator is made once for what
does not change from call to call (the kernel, its constants, the kinds of its arguments, who shares memory with whom);
its schema says what _kernel_writes.py found to be written, and the rest of the compiler treats it as any operator that
writes arguments. Kernels have no gradient: autograd does not see them, as in eager.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from flashover import _C
from flashover._kernel_writes import DESCRIPTOR, UnknownMemory, Writes, writes_of

_NAMESPACE = "flashover_kernel_"  # and a digest: two operators of one name, and so overloads, cannot be taken back


# ---- what is known of a kernel


@dataclass(frozen=True, eq=False, slots=True)
class _Kernel:
    """A kernel as it is launched: a function of Triton's, alone or behind an autotuner and heuristics."""

    launched: Any
    function: Any  # JITFunction or InterpretedFunction
    names: tuple[str, ...]  # of all parameters
    defaults: dict[str, Any]
    constexprs: frozenset[str]
    configs: tuple[dict[str, Any], ...]  # what the autotuner chooses between; one empty dict without it
    heuristics: tuple[dict[str, Callable[..., Any]], ...]  # between the autotuner and the function, as they run
    tuned: frozenset[str]  # names that those two give
    reset: frozenset[str]  # names of what the autotuner itself writes
    hooked: bool  # functions of the user's get all arguments first
    digest: str  # of its code


_LOCK = threading.RLock()
_KERNELS: dict[int, _Kernel | None] = {}  # by address


def _chain(launched: Any) -> Iterator[Any]:
    while True:
        yield launched
        if inspect.isfunction(launched.fn):
            return
        launched = launched.fn


def _code(function: Any, interpreted: bool) -> str:
    if not interpreted:
        return str(function.cache_key)
    try:
        return inspect.getsource(function.fn) + function.fn.__module__
    except OSError:
        return repr(id(function))


def _describe(launched: Any) -> _Kernel | None:
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    chain = list(_chain(launched))
    function = chain[-1]
    if type(function) not in (JITFunction, InterpretedFunction):
        return None
    tuner = launched if type(launched) is Autotuner else None
    middle = chain[:-1] if tuner is None else chain[1:-1]
    if any(type(h) is not Heuristics for h in middle):
        return None
    parameters = inspect.signature(function.fn).parameters
    if any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters.values()):
        return None
    configs = [] if tuner is None else [dict(c.kwargs) for c in tuner.configs]
    heuristics = tuple(dict(h.values) for h in middle)
    hooked = bool(function.pre_run_hooks)
    if tuner is not None:
        hooked = hooked or tuner.user_defined_pre_hook or tuner.user_defined_post_hook
        hooked = hooked or any(c.pre_hook is not None for c in tuner.configs)
    return _Kernel(
        launched=launched,
        function=function,
        names=tuple(parameters),
        defaults={p.name: p.default for p in parameters.values() if p.default is not p.empty},
        constexprs=frozenset(p.name for p in parameters.values() if "constexpr" in str(p.annotation)),
        configs=tuple(configs or [{}]),
        heuristics=heuristics,
        tuned=frozenset(n for d in (*configs, *heuristics) for n in d),
        reset=frozenset() if tuner is None else frozenset([*tuner.reset_to_zero, *tuner.restore_value]),
        hooked=hooked,
        digest=_code(function, type(function) is InterpretedFunction)
        + ("" if tuner is None else "".join(str(c) for c in tuner.configs)),
    )


class _Held:
    """An object that is handed on as it is: nobody looks for tensors behind it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"object {id(self.value)}"


_PLAIN_TYPES = (bool, int, float, str, type(None))


def _hold(value: Any) -> Any:
    if type(value) in _PLAIN_TYPES:
        return value
    id(value)  # (asking for it makes a guard of it)
    return _Held(value)


def _values(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {n: v.value if type(v) is _Held else v for n, v in pairs}


def _known(held: _Held) -> _Kernel | None:
    """None: not a kernel of a kind that is known."""
    launched = held.value
    with _LOCK:
        if id(launched) not in _KERNELS:
            _KERNELS[id(launched)] = _describe(launched)
        return _KERNELS[id(launched)]


# ---- what it writes

_POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint64: "*u64",
    torch.uint32: "*u32",
    torch.uint16: "*u16",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}

_Pairs = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _Outcome:
    names: frozenset[str] = frozenset()
    acts: bool = False
    refusal: Any = None  # what ends the graph, with its reason


_OUTCOMES: dict[Any, _Outcome] = {}


def _analyse(kernel: _Kernel, kinds: _Pairs, constants: dict[str, Any]) -> Writes:
    from triton.runtime.jit import JITFunction

    types = {n: _POINTERS.get(k, "*i8") if isinstance(k, torch.dtype) else k for n, k in kinds}
    signature = {n: types.get(n, "constexpr") for n in kernel.names}
    function = kernel.function
    if type(function) is not JITFunction:  # Triton's interpreter has none of its own
        function = JITFunction(function.fn)
    return writes_of(function, signature, {n: constants.get(n) for n, t in signature.items() if t == "constexpr"})


def _outcome(kernel: _Kernel, kinds: _Pairs, constants: _Pairs, metas: tuple[_Pairs, ...]) -> _Outcome:
    """kinds: names of tensors with their dtypes, and of numbers with their types; metas: what is tuned, for each
    configuration."""
    key = (id(kernel), kinds, repr(constants), repr(metas))
    with _LOCK:
        if key not in _OUTCOMES:
            _OUTCOMES[key] = _find_outcome(kernel, kinds, constants, metas)
        return _OUTCOMES[key]


def _find_outcome(kernel: _Kernel, kinds: _Pairs, constants: _Pairs, metas: tuple[_Pairs, ...]) -> _Outcome:
    tensors = frozenset(n for n, k in kinds if isinstance(k, torch.dtype) or k.startswith(DESCRIPTOR))
    names, acts = frozenset(kernel.reset & tensors), kernel.hooked
    try:
        for meta in metas:
            found = _analyse(kernel, kinds, {**_values(constants), **_values(meta)})
            names, acts = names | found.names, acts or found.acts
    except UnknownMemory as unknown:
        return _Outcome(refusal=_refusal(f"a Triton kernel that is not captured: {unknown}"))
    return _Outcome(tensors if kernel.hooked else names, acts)


# ---- its operator


@dataclass(frozen=True)
class _Piece:
    """How a tensor argument is found in the operator's."""

    name: str
    slot: int
    rank: int | None = None  # of the part of the slot that it is; None: all of it


_ROUNDS = "round_f32_to_tf32"  # of a TensorDescriptor, from Triton 3.7 on


@dataclass(frozen=True)
class _Descriptor:
    """A tensor argument that the kernel gets as Triton's TensorDescriptor; its sizes and strides are numbers."""

    name: str
    rank: int
    block_shape: tuple[int, ...]
    padding: str
    flags: _Pairs  # that are set and that not every release of Triton has

    def numbers(self) -> tuple[list[str], list[str]]:
        """What the sizes and the strides are called; no parameter is called so."""
        sizes, strides = ([f"{self.name}.{what}{i}" for i in range(self.rank)] for what in ("size", "stride"))
        return sizes, strides

    def make(self, base: torch.Tensor, values: dict[str, Any]) -> Any:
        from triton.tools.tensor_descriptor import TensorDescriptor

        sizes, strides = ([values.pop(n) for n in names] for names in self.numbers())
        return TensorDescriptor(base, sizes, strides, list(self.block_shape), self.padding, **_values(self.flags))


@dataclass(frozen=True)
class _Call:
    """What of a launch is the same in each call."""

    pieces: tuple[_Piece, ...]
    slots: int
    written: int  # the first so many slots
    numbers: tuple[str, ...]
    floats: tuple[str, ...]
    constants: _Pairs
    options: _Pairs
    positional: int
    grids: int
    acts: bool
    descriptors: tuple[_Descriptor, ...]


_OPERATORS: dict[Any, Any] = {}
_LIBRARIES: dict[str, torch.library.Library] = {}


def _schema(call: _Call) -> str:
    tensors = [f"Tensor(a{i}!) t{i}" if i < call.written else f"Tensor t{i}" for i in range(call.slots)]
    floats = [f"float f{i}" for i in range(len(call.floats))]
    return f"({', '.join([*tensors, 'SymInt[] numbers', 'SymInt[] grid', 'SymInt[] parts', *floats])}) -> ()"


def _operator(kernel: _Kernel, call: _Call) -> Any:
    """The torch operator that launches the kernel so."""
    key = (id(kernel), call.pieces, call.slots, call.written, call.numbers, call.floats, call.positional, call.grids)
    key += (call.acts, call.descriptors, repr(call.constants), repr(call.options))
    with _LOCK:
        if key not in _OPERATORS:
            _OPERATORS[key] = _define(kernel, call)
        return _OPERATORS[key]


def _constant_text(value: Any) -> str:
    code = getattr(value, "cache_key", None)
    return code if isinstance(code, str) else repr(value)


def _define(kernel: _Kernel, call: _Call) -> Any:
    said = [kernel.digest, repr((call.pieces, call.slots, call.written, call.numbers, call.floats, call.positional))]
    said += [f"{n}={_constant_text(v)}" for n, v in _values((*call.constants, *call.options)).items()]
    said += [repr(d) for d in call.descriptors]
    name, count = kernel.function.fn.__name__, 0
    while True:  # the name is the same in another process, where it stands in cached plans
        space = _NAMESPACE + hashlib.sha256("\n".join([*said, str(count)]).encode()).hexdigest()[:16]
        if space not in _LIBRARIES:
            break
        count += 1
    library = _LIBRARIES[space] = torch.library.Library(space, "DEF")
    # (core: it does nothing but compute what it writes)
    library.define(name + _schema(call), tags=() if call.acts else (torch.Tag.core,))
    run = _launcher(kernel, call)
    library.impl(name, run, "CPU")
    library.impl(name, run, "CUDA")
    library.impl(name, lambda *_: None, "Meta")
    library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    return getattr(getattr(torch.ops, space), name).default


def _grid_of(kernel: _Kernel, call: _Call, sizes: Sequence[int]) -> Any:
    if call.grids == 1:
        return tuple(sizes)
    grids = {tuple(c.items()): tuple(sizes[3 * i : 3 * i + 3]) for i, c in enumerate(kernel.configs)}
    keys = [tuple(c) for c in kernel.configs]

    def grid(meta: dict[str, Any]) -> tuple[int, ...]:
        for names in keys:
            found = grids.get(tuple((n, meta[n]) for n in names))
            if found is not None:
                return found
        raise RuntimeError(
            f"flashover: {kernel.function.fn.__name__} is launched with a configuration that it did not have when it "
            "was compiled; call flashover.reset() after changing the configurations of a kernel"
        )

    return grid


def _launcher(kernel: _Kernel, call: _Call) -> Callable[..., None]:
    fixed, options = _values(call.constants), _values(call.options)
    leading = kernel.names[: call.positional]

    def run(*args: Any) -> None:
        tensors, (numbers, sizes, parts, *floats) = args[: call.slots], args[call.slots :]
        values = dict(fixed)
        values.update(zip(call.numbers, numbers, strict=True))
        values.update(zip(call.floats, floats, strict=True))
        at = 0
        for piece in call.pieces:
            tensor = tensors[piece.slot]
            if piece.rank is not None:
                end = at + 2 * piece.rank
                size, stride = parts[at : at + piece.rank], parts[at + piece.rank : end]
                tensor = tensor.as_strided(size, stride, tensor.storage_offset() + parts[end])
                at = end + 1
            values[piece.name] = tensor
        for d in call.descriptors:
            values[d.name] = d.make(values[d.name], values)
        positional = [values.pop(n) for n in leading]
        grid = _grid_of(kernel, call, sizes)
        where = tensors[0].device
        if where.type == "cuda" and where.index != torch.cuda.current_device():
            with torch.cuda.device(where):
                kernel.launched.run(*positional, grid=grid, warmup=False, **values, **options)
        else:
            kernel.launched.run(*positional, grid=grid, warmup=False, **values, **options)

    # Called by the dispatcher. Behind a graph break a launch that is captured would end in this operator again.
    return _C.Disabled(run, "the launch of a Triton kernel")


# ---- the launch, as the interpreter looks into it


def _run_as_written(kernel: Any, args: Sequence[Any], grid: Any, kwargs: dict[str, Any]) -> Any:
    return kernel.run(*args, grid=grid, warmup=False, **kwargs)


_REFUSALS: dict[str, Any] = {}


def _refusal(reason: str) -> Any:
    """Called in captured code it ends the graph, and launches the kernel as it is written."""
    return _REFUSALS.setdefault(reason, _C.Disabled(_run_as_written, reason))


_unknown_kind = _refusal("a launch of a Triton kernel of a kind that is not known")
_wrong_arguments = _refusal("a launch of a Triton kernel with arguments that do not fit")
_strange_argument = _refusal("a launch of a Triton kernel with an argument that is no tensor, number or constant")
_strange_grid = _refusal("a launch of a Triton kernel whose grid is not of one to three numbers")
_strange_memory = _refusal("a launch of a Triton kernel with parts of one memory that are of several dtypes")


def _groups(written: Sequence[bool], tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """For each tensor the first one that it shares memory with; -1 where it stands for itself: nothing that is written
    shares its memory, nor is it a part of something that is written through it."""
    memory = [t.untyped_storage()._cdata for t in tensors]
    first = [memory.index(m) for m in memory]
    alone = []
    for i in range(len(tensors)):
        members = [j for j in range(len(tensors)) if first[j] == first[i]]
        one = all(tensors[j] is tensors[i] for j in members) and tensors[i]._base is None
        alone.append(one or not any(written[j] for j in members))
    return tuple(-1 if alone[i] else first[i] for i in range(len(tensors)))


def _whole(members: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensor that all of these are parts of: pointers reach beyond what a view shows."""
    roots = [t if t._base is None else t._base for t in members]
    if all(root is roots[0] for root in roots):
        return roots[0]
    one = members[0]
    return torch.as_strided(one, (one.untyped_storage().nbytes() // one.element_size(),), (1,), 0)


def _offset(part: torch.Tensor, whole: torch.Tensor) -> int:
    return part.storage_offset() - whole.storage_offset()


def _is_grid(shape: Any) -> bool:
    if type(shape) not in (tuple, list) or not 1 <= len(shape) <= 3:
        return False
    return all([type(n) is int for n in shape])  # noqa: C419  (of flags: it would ask for the values of numbers)


def _descriptor_type(base: torch.Tensor, block_shape: tuple[int, ...]) -> str:
    return f"{DESCRIPTOR}<{_POINTERS[base.dtype][1:]}{list(block_shape)}>"


@dataclass
class _Arguments:
    """Of one launch."""

    bound: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    floats: dict[str, float] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    descriptors: list[_Descriptor] = field(default_factory=list)

    def put(self, name: str, value: Any, constexpr: bool) -> bool:
        self.bound[name] = value
        if isinstance(value, torch.Tensor):
            self.tensors[name] = value
        elif constexpr or value is None or type(value) in (bool, str):
            self.constants[name] = _hold(value)
        elif type(value) is int:
            self.numbers[name] = value
        elif type(value) is float:
            self.floats[name] = value
        else:
            return type(value).__module__ == "triton.tools.tensor_descriptor" and self._put_descriptor(name, value)
        return True

    def _put_descriptor(self, name: str, value: Any) -> bool:
        block_shape = tuple([int(n) for n in value.block_shape])
        flags = ((_ROUNDS, True),) if getattr(value, _ROUNDS, False) else ()
        made = _Descriptor(name, len(value.shape), block_shape, value.padding, flags)
        for names, given in zip(made.numbers(), (value.shape, value.strides), strict=True):
            for i in range(len(names)):
                if type(given[i]) is not int:
                    return False
                self.numbers[names[i]] = given[i]
        if value.base.dtype not in _POINTERS:
            return False
        self.tensors[name] = value.base
        self.descriptors.append(made)
        return True

    def kinds(self) -> _Pairs:
        pairs: list[tuple[str, Any]] = [(n, t.dtype) for n, t in self.tensors.items()]
        pairs += [(d.name, _descriptor_type(self.tensors[d.name], d.block_shape)) for d in self.descriptors]
        pairs += [(n, "i32") for n in self.numbers]
        pairs += [(n, "fp32") for n in self.floats]
        return tuple(pairs)


def _metas(kernel: _Kernel, bound: dict[str, Any]) -> list[dict[str, Any]]:
    """What a grid is told, for each configuration."""
    metas = []
    for config in kernel.configs:
        meta = {**bound, **config}
        for heuristics in kernel.heuristics:
            for name, decide in heuristics.items():
                meta[name] = decide(meta)
        metas.append(meta)
    return metas


def _places(
    tensors: dict[str, torch.Tensor], written: frozenset[str]
) -> tuple[list[torch.Tensor], int, list[_Piece], list[int]] | None:
    """The operator's tensors, written ones first, how many those are, and where the kernel's arguments lie in them.
    None: parts of one memory are of several dtypes."""
    names = list(tensors)
    groups = _groups([n in written for n in names], list(tensors.values()))
    handed: dict[str, torch.Tensor] = {}
    for i, name in enumerate(names):
        handed[name] = tensors[name]
        if groups[i] >= 0:
            members = [tensors[n] for j, n in enumerate(names) if groups[j] == groups[i]]
            handed[name] = handed[names[groups[i]]] if groups[i] < i else _whole(members)
            if handed[name].dtype is not tensors[name].dtype:
                return None
    slots: list[torch.Tensor] = []
    slot_of: dict[str, int] = {}
    count = 0
    for wanted in (True, False):
        for name, t in handed.items():
            if (name in written) is not wanted:
                continue
            for k, s in enumerate(slots):
                if s is t:
                    slot_of[name] = k
            if name not in slot_of:
                slot_of[name] = len(slots)
                slots.append(t)
        if wanted:
            count = len(slots)
    pieces, parts = [], []
    for name in names:
        part, whole = tensors[name], handed[name]
        if part is whole:
            pieces.append((name, slot_of[name], None))
            continue
        pieces.append((name, slot_of[name], part.dim()))
        parts = [*parts, *part.size(), *part.stride(), _offset(part, whole)]
    return slots, count, pieces, parts


def launch(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
    """In the place of kernel.run, which kernel[grid](...) calls."""
    kernel = _known(_hold(self))
    if kernel is None or warmup:
        return _unknown_kind(self, args, grid, kwargs)
    if len(args) > len(kernel.names):
        return _wrong_arguments(self, args, grid, kwargs)
    given, options = {}, {}
    for i in range(len(args)):  # (a function in C, such as zip, would ask for the values of numbers)
        given[kernel.names[i]] = args[i]
    for name in kwargs:
        if name in given:
            return _wrong_arguments(self, args, grid, kwargs)
        (given if name in kernel.names else options)[name] = kwargs[name]
    arguments = _Arguments()
    for name in kernel.names:
        if name in kernel.tuned:
            if name in given:
                return _wrong_arguments(self, args, grid, kwargs)
            continue
        if name not in given and name not in kernel.defaults:
            return _wrong_arguments(self, args, grid, kwargs)
        value = given[name] if name in given else kernel.defaults[name]
        if not arguments.put(name, value, name in kernel.constexprs):
            return _strange_argument(self, args, grid, kwargs)
    if not arguments.tensors:
        return _strange_argument(self, args, grid, kwargs)
    return _launch_bound(self, kernel, arguments, (args, grid, kwargs), options)


def _launch_bound(
    self: Any, kernel: _Kernel, arguments: _Arguments, written: tuple[Any, Any, Any], options: dict[str, Any]
) -> Any:
    grid = written[1]
    metas = _metas(kernel, arguments.bound)
    constants = tuple([(n, arguments.constants[n]) for n in arguments.constants])
    tuned = tuple([tuple([(n, _hold(m[n])) for n in m if n in kernel.tuned]) for m in metas])
    outcome = _outcome(kernel, arguments.kinds(), constants, tuned)
    if outcome.refusal is not None:
        return outcome.refusal(self, *written)
    flat: list[int] = []
    # (callable() is not asked of a grid of numbers: it would ask for their values)
    for shape in [grid(m) for m in metas] if type(grid) not in (tuple, list) and callable(grid) else [grid]:
        if not _is_grid(shape):
            return _strange_grid(self, *written)
        flat = [*flat, *shape, *([1] * (3 - len(shape)))]
    places = _places(arguments.tensors, outcome.names)
    if places is None:
        return _strange_memory(self, *written)
    slots, count, pieces, parts = places
    given = (tuple(arguments.numbers.keys()), tuple(arguments.floats.keys()), constants)
    chosen = tuple([(n, _hold(options[n])) for n in options])
    operator = _operator_for(
        kernel,
        (tuple(pieces), len(slots), count, *given),
        (chosen, len(written[0]), len(flat) // 3, outcome.acts, tuple(arguments.descriptors)),
    )
    numbers = [arguments.numbers[n] for n in arguments.numbers]
    floats = [arguments.floats[n] for n in arguments.floats]
    operator(*slots, numbers, flat, parts, *floats)


def _operator_for(kernel: _Kernel, what: tuple[Any, ...], how: tuple[Any, ...]) -> Any:
    pieces, *rest = what
    return _operator(kernel, _Call(tuple(_Piece(*p) for p in pieces), *rest, *how))


def _check_descriptor(self: Any) -> None:
    """What Triton's TensorDescriptor asks of itself, but for the address: the launch makes it again of a tensor that
    has one."""
    from triton._utils import validate_block_shape

    rank = len(self.shape)
    assert len(self.strides) == rank and len(self.block_shape) == rank, f"rank mismatch: {self}"
    assert 0 < rank <= 5, "a tensor descriptor has one to five dims"
    validate_block_shape(self.block_shape)
    for i in range(rank):
        assert self.shape[i] > 0, "shape must be positive"
        if i + 1 < rank:
            assert (self.strides[i] * self.base.dtype.itemsize) % 16 == 0, "strides must be 16-byte aligned"
    assert self.strides[-1] == 1, "Last dimension must be contiguous"
    assert self.padding in ("zero", "nan"), "Illegal value for padding"
    if self.padding == "nan":
        assert self.base.dtype.is_floating_point, "Padding option `nan` is only supported for floating point tensors"
    if getattr(self, _ROUNDS, False):
        assert self.base.dtype == torch.float32, "round_f32_to_tf32 is only supported for float32 tensors"


def _wrap(kernel: Any) -> Any:
    """torch.library.wrap_triton, which is for another tracer."""
    return kernel


def _wrapped_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self.kernel[self.grid](*args, **kwargs)


def _wrapped_run(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self.kernel.run(*args, **kwargs)


_WRAPPER = "torch._higher_order_ops.triton_kernel_wrap"
_TABLE: dict[tuple[str, str], Callable[..., Any]] = {
    ("triton.runtime.jit", "JITFunction.run"): launch,
    ("triton.runtime.interpreter", "InterpretedFunction.run"): launch,
    ("triton.runtime.autotuner", "Autotuner.run"): launch,
    ("triton.tools.tensor_descriptor", "TensorDescriptor.__post_init__"): _check_descriptor,
    ("torch._library.triton", "wrap_triton"): _wrap,
    (_WRAPPER, "TraceableTritonKernelWrapper.__call__"): _wrapped_call,
    (_WRAPPER, "TraceableTritonKernelWrapper.run"): _wrapped_run,
}


def register() -> None:
    for (module, name), function in _TABLE.items():
        _C.substitute(module, name, function)
    for constant in (_known, _outcome, _operator_for):
        _C.mark(constant, "constant")
    for plain in (_groups, _whole, _offset):
        _C.mark(plain, "allow")
