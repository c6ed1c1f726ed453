"""Which memory a Triton kernel writes, read from its TTIR (Triton's first representation, made without a device).

A value flows from operands to results, through loops, branches and calls of other functions. What a store, an atomic
operation or an operation that is not known here gets as a pointer is followed back to the kernel's parameters: these
are written. Each question is answered for all paths and all calls at once, so the answer may have too many names, and
never too few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

DESCRIPTOR = "tensordesc"  # what Triton's type of a tensor descriptor begins with: tensordesc<fp32[16, 32]>


class UnknownMemory(Exception):
    """The kernel reaches memory by an address that is not one of its arguments."""


@dataclass(frozen=True)
class Writes:
    names: frozenset[str]  # of parameters
    acts: bool  # it may do more than write them: print, assert, assembly


# Their first operand points to what they write; what they return is data.
_WRITERS = {
    "tt.store",
    "tt.atomic_rmw",
    "tt.atomic_cas",
    "tt.descriptor_store",
    "tt.descriptor_reduce",
    "tt.descriptor_scatter",
}
_READERS = {"tt.load", "tt.descriptor_load", "tt.descriptor_gather"}
_CHECKS = {"tt.assert", "tt.print"}
_FOREIGN = {"tt.elementwise_inline_asm", "tt.extern_elementwise"}
_PLAIN_NAMES = """
    addptr advance bitcast broadcast call cat clampf dot dot_scaled expand_dims fp_to_fp func gather get_num_programs
    get_program_id histogram int_to_ptr join make_range make_tensor_descriptor make_tensor_ptr map_elementwise
    map_elementwise.return mulhiui precise_divf precise_sqrt ptr_to_int reduce reduce.return reshape return scan
    scan.return splat split trans unsplat
"""
_PLAIN = {"tt." + name for name in _PLAIN_NAMES.split()}
_PLAIN_DIALECTS = ("arith.", "math.", "ub.", "scf.", "cf.", "builtin.")


@dataclass
class _Operation:
    name: str
    operands: list[int]
    results: list[int]
    result_types: list[str]
    block: int
    regions: list[int]
    symbol: str  # the function that is called or defined
    pure: bool


@dataclass
class _Module:
    """What its operations say, with values, blocks and regions by number."""

    operations: list[_Operation] = field(default_factory=list)
    blocks: dict[int, list[int]] = field(default_factory=dict)  # block -> its arguments
    blocks_of: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # region -> blocks, in order
    region_of: dict[int, int] = field(default_factory=dict)  # block -> region

    def note(self, op: Any) -> None:
        name = op.get_name()
        block = op.get_block()
        at = 0
        if block is not None:
            at = block.id()
            if at not in self.blocks:
                self.blocks[at] = [block.get_argument(i).id() for i in range(block.get_num_arguments())]
                self.region_of[at] = block.get_parent().id()
                self.blocks_of[self.region_of[at]].append(at)
        results = [op.get_result(i) for i in range(op.get_num_results())]
        symbol = ""
        if name == "tt.func":
            symbol = op.get_str_attr("sym_name")
        elif name == "tt.call":
            symbol = op.get_flat_symbol_ref_attr("callee")
        self.operations.append(
            _Operation(
                name,
                [op.get_operand(i).id() for i in range(op.get_num_operands())],
                [r.id() for r in results],
                [str(r.get_type()) for r in results],
                at,
                [op.get_region(i).id() for i in range(op.get_num_regions())],
                symbol,
                name in _FOREIGN and bool(op.get_bool_attr("pure")),
            )
        )

    def arguments(self, region: int) -> list[int]:
        """Of a function, or of the body of a loop."""
        blocks = self.blocks_of[region]
        return self.blocks[blocks[0]] if blocks else []

    def ends(self, region: int, name: str) -> list[_Operation]:
        blocks = set(self.blocks_of[region])
        return [op for op in self.operations if op.name == name and op.block in blocks]


class _Flow:
    """From which values each one is made."""

    def __init__(self, module: _Module) -> None:
        self._module = module
        self._made_of: dict[int, set[int]] = defaultdict(set)
        self._functions = {op.symbol: op for op in module.operations if op.name == "tt.func"}
        for op in module.operations:
            self._note(op)

    def _pass(self, sources: list[int], targets: list[int]) -> bool:
        """One to one; False: they are not as many."""
        if len(sources) != len(targets):
            return False
        for source, target in zip(sources, targets, strict=True):
            self._made_of[target].add(source)
        return True

    def _mix(self, sources: Iterable[int], targets: Iterable[int]) -> None:
        from_all = set(sources)
        for target in targets:
            self._made_of[target] |= from_all

    def _note(self, op: _Operation) -> None:
        if op.name in _WRITERS or op.name in _READERS or op.name == "tt.func":
            return
        if op.name == "tt.call":
            self._note_call(op)
        elif op.name.startswith("cf."):
            region = self._module.region_of[op.block]
            for block in self._module.blocks_of[region][1:]:
                self._mix(op.operands, self._module.blocks[block])
        elif not op.regions:
            self._mix(op.operands, op.results)
        elif not self._note_structured(op):
            inside = {b for region in op.regions for b in self._module.blocks_of[region]}
            given = {v for o in self._module.operations if o.block in inside and not o.results for v in o.operands}
            targets = [*op.results, *(v for b in inside for v in self._module.blocks[b])]
            self._mix([*op.operands, *given], targets)

    def _note_call(self, op: _Operation) -> None:
        function = self._functions.get(op.symbol)
        if function is None:
            raise UnknownMemory(f"it calls {op.symbol or 'a function'}, whose code is not there")
        region = function.regions[0]
        if not self._pass(op.operands, self._module.arguments(region)):
            raise UnknownMemory(f"it calls {op.symbol} with other arguments than it takes")
        for end in self._module.ends(region, "tt.return"):
            self._mix(end.operands, op.results)

    def _note_structured(self, op: _Operation) -> bool:
        m = self._module
        if op.name == "scf.for":
            body = m.arguments(op.regions[0])[1:]
            carried = [(op.operands[3:], body), (op.operands[3:], op.results)]
            for end in m.ends(op.regions[0], "scf.yield"):
                carried += [(end.operands, body), (end.operands, op.results)]
        elif op.name == "scf.while" and len(op.regions) == 2:
            before, after = (m.arguments(r) for r in op.regions)
            carried = [(op.operands, before)]
            for end in m.ends(op.regions[0], "scf.condition"):
                carried += [(end.operands[1:], after), (end.operands[1:], op.results)]
            carried += [(end.operands, before) for end in m.ends(op.regions[1], "scf.yield")]
        elif op.name == "scf.if":
            carried = [(end.operands, op.results) for region in op.regions for end in m.ends(region, "scf.yield")]
        else:
            return False
        if any(len(sources) != len(targets) for sources, targets in carried):
            return False
        for sources, targets in carried:
            self._pass(sources, targets)
        return True

    def origins(self, value: int) -> set[int]:
        seen, todo = {value}, [value]
        while todo:
            for source in self._made_of.get(todo.pop(), ()):
                if source not in seen:
                    seen.add(source)
                    todo.append(source)
        return seen


def _is_known(name: str) -> bool:
    return name in _PLAIN or name in _WRITERS or name in _READERS or name.startswith(_PLAIN_DIALECTS)


def writes_of_module(ttir: Any, parameters: list[str | None]) -> Writes:
    """parameters: for each argument of the entry function the name of the tensor it points to, or None."""
    module = _Module()
    ttir.walk(module.note)
    entry_name = ttir.get_entry_func_name()
    entry = next(op for op in module.operations if op.name == "tt.func" and op.symbol == entry_name)
    arguments = module.arguments(entry.regions[0])
    if len(arguments) != len(parameters):
        raise UnknownMemory("its arguments are others in its code")
    pointers = {v: name for v, name in zip(arguments, parameters, strict=True) if name is not None}
    flow = _Flow(module)

    def names(value: int) -> set[str]:
        return {pointers[v] for v in flow.origins(value) & pointers.keys()}

    written: set[str] = set()
    acts = False
    for op in module.operations:
        if op.name == "tt.int_to_ptr" and not names(op.operands[0]):
            raise UnknownMemory("it makes a pointer of a number")
        if op.name in _READERS and any("!tt.ptr" in t for t in op.result_types):
            raise UnknownMemory("it loads pointers from memory")
        if op.name in _WRITERS:
            targets = names(op.operands[0])
            if not targets:
                raise UnknownMemory("it writes through a pointer that is no argument")
            written |= targets
        elif op.name in _FOREIGN:
            written |= {n for v in op.operands for n in names(v)}
            acts = acts or not op.pure
        elif not _is_known(op.name):
            written |= {n for v in op.operands for n in names(v)}
            acts = True
    return Writes(frozenset(written), acts)


def _ttir(function: Any, signature: Mapping[str, str], constants: Mapping[str, Any]) -> Any:
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend

    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    at = {name: (i,) for i, name in enumerate(signature)}
    source = ASTSource(function, dict(signature), {at[name]: value for name, value in constants.items()}, {})
    module = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    return module, context  # the module lives in the context


def writes_of(function: Any, signature: Mapping[str, str], constants: Mapping[str, Any]) -> Writes:
    """Of a kernel (a JITFunction) whose parameters have these types; "constexpr" ones have a value in constants. Throws
    UnknownMemory; where the code cannot be made, all pointers count as written."""
    runtime = [name for name, kind in signature.items() if kind != "constexpr"]
    tensors = [name if signature[name].startswith(("*", DESCRIPTOR)) else None for name in runtime]
    parameters: list[str | None] = []
    for name, tensor in zip(runtime, tensors, strict=True):
        rank = signature[name].count(",") + 1 if signature[name].startswith(DESCRIPTOR) else 0
        parameters += [tensor, *[None] * (2 * rank)]  # a descriptor's sizes and strides follow it
    try:
        made = _ttir(function, signature, constants)
        return writes_of_module(made[0], parameters)
    except UnknownMemory:
        raise
    except Exception:  # Triton refuses what it cannot compile in ways of its own; the launch will say so
        return Writes(frozenset(n for n in tensors if n is not None), True)
