"""Runs plans of Triton kernels on CPU tensors, in Triton's interpreter. Only for a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import dataclasses
import linecache
import os
import sys
from typing import Any

import numpy as np
import torch
import triton.language as tl
from op_calls import NUMBER_DTYPE
from triton.runtime import interpreter

assert os.environ.get("TRITON_INTERPRET") == "1"
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "python", "flashover"))

DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "b8": torch.bool,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
patch_tensors = interpreter._patch_lang_tensor


def patch_tensors_and_bounds(tensor: Any, scope: Any) -> None:
    """Bounds of loops are arrays of one element in the interpreter, of which numpy 2 makes no number by itself."""
    patch_tensors(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = patch_tensors_and_bounds


# It would compute all sums and products of integers twice, for an assertion that only its debug mode makes.
builder = interpreter.interpreter_builder
builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
assert not builder.options.debug

patch_language = interpreter._patch_lang
patched: set[frozenset[int]] = set()


def patch_language_once(function: Any) -> Any:
    """Each call of a function within a kernel would patch the language anew, which finds nothing left to patch."""
    seen = frozenset(id(v) for v in function.__globals__.values() if v is tl or v is tl.core)
    scope = interpreter._LangPatchScope()
    if seen not in patched:
        scope = patch_language(function)
        patched.add(seen)
        restore = scope.restore

        def restore_all() -> None:
            patched.clear()
            restore()

        scope.restore = restore_all
    return scope


interpreter._patch_lang = patch_language_once

numpy_dtype = interpreter._get_np_dtype
numpy_dtypes: dict[str, np.dtype] = {}


def numpy_dtype_once(of: Any) -> np.dtype:
    """The interpreter would build its table for each value."""
    of = of.element_ty if isinstance(of, tl.block_type) else of
    if of.name not in numpy_dtypes:
        numpy_dtypes[of.name] = numpy_dtype(of)
    return numpy_dtypes[of.name]


interpreter._get_np_dtype = numpy_dtype_once


class WholeBlocks:
    """The interpreter combines one pair of elements after another where it does not know the function; nine tenths of
    a run went there. What combines two elements combines two blocks as well, as it does on a GPU."""

    def __init__(self, op: Any, given: tuple[Any, ...]) -> None:
        self.op, self.dtypes = op, [t.dtype for t in given]

    def combined(self, left: list[np.ndarray], right: list[np.ndarray]) -> list[np.ndarray]:
        made = self.op.combine_fn.fn(*self.tensors(left), *self.tensors(right))
        made = made if isinstance(made, tuple) else (made,)
        return [m.handle.data.astype(x.dtype, copy=False) for m, x in zip(made, left, strict=True)]

    def tensors(self, data: list[np.ndarray]) -> list[Any]:
        return [self.op.to_tensor(d, dtype) for d, dtype in zip(data, self.dtypes, strict=True)]


def reduce_blocks(self: Any, given: tuple[Any, ...]) -> list[Any]:
    """Neighbours are combined, then neighbours of those: the order is kept, so the function need only associate."""
    assert self.axis is not None and self.keep_dims, "no kernel of ours reduces otherwise"
    blocks = WholeBlocks(self, given)
    data = [np.moveaxis(t.handle.data, self.axis, 0) for t in given]
    while len(data[0]) > 1:
        data = blocks.combined([d[0::2] for d in data], [d[1::2] for d in data])
    return blocks.tensors([np.moveaxis(d, 0, self.axis) for d in data])


def scan_blocks(self: Any, given: tuple[Any, ...]) -> list[Any]:
    """After each round an element holds twice as many elements that end at it."""
    blocks = WholeBlocks(self, given)
    data = [np.moveaxis(t.handle.data, self.axis, 0) for t in given]
    reach = 1
    while reach < len(data[0]):
        longer = blocks.combined([np.roll(d, reach, 0) for d in data], data)
        data = [np.concatenate([d[:reach], x[reach:]]) for d, x in zip(data, longer, strict=True)]
        reach *= 2
    return blocks.tensors([np.moveaxis(d, 0, self.axis) for d in data])


interpreter.ReduceOps.generic_reduce = reduce_blocks
interpreter.ScanOps.generic_scan = scan_blocks
EIGHT_BITS = {torch.float8_e4m3fn, torch.float8_e5m2}


def function_of(source: dict[str, Any]) -> Any:
    filename = f"<{source['name']}>"
    text = source["text"]
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    scope: dict[str, Any] = {"__name__": source["name"]}
    exec(compile(text, filename, "exec"), scope)
    return scope[source["name"]]


def numbers(value: Any, sizes: dict[str, int]) -> Any:
    """Numbers for expressions over symbols."""
    if isinstance(value, list):
        return [numbers(v, sizes) for v in value]
    return eval(value, {"min": min, "max": max}, sizes) if isinstance(value, str) else value


class Runner:
    """sizes: what the symbols of the plan are."""

    def __init__(self, program: dict[str, Any], sizes: dict[str, int] | None = None) -> None:
        self.functions = [function_of(k) for k in program["kernels"]]
        self.program = dict(program)
        self.sizes = sizes = sizes or {}
        self.program["arena_bytes"] = numbers(program["arena_bytes"], sizes)
        for kind, fields in (
            ("tensors", ("sizes", "strides", "offset", "arena")),
            ("outputs", ("sizes", "strides", "offset")),
            ("steps", ("sizes",)),
        ):
            self.program[kind] = [{**t, **{f: numbers(t[f], sizes) for f in fields}} for t in program[kind]]

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        p = self.program
        arena = torch.full((p["arena_bytes"] + 64,), 0x7F, dtype=torch.uint8)  # stale memory must show
        tensors: list[torch.Tensor | None] = []
        for t in p["tensors"]:
            dtype = DTYPES[t["dtype"]]
            if t["storage"] == "input":
                tensors.append(inputs[t["index"]].detach())
            elif t["storage"] == "arena":
                size = torch.tensor([], dtype=dtype).element_size()
                span = (
                    1 + sum((n - 1) * s for n, s in zip(t["sizes"], t["strides"], strict=True))
                    if 0 not in t["sizes"]
                    else 0
                )
                # Where sizes are symbols, the executor places each tensor for the sizes of the call.
                stale = torch.full((span * size,), 0x7F, dtype=torch.uint8) if self.sizes else arena[t["arena"] :]
                flat = stale[: span * size].view(dtype)
                tensors.append(flat.as_strided(t["sizes"], t["strides"]))
            elif t["storage"] in ("output", "frozen"):
                tensors.append(torch.empty_strided(t["sizes"], t["strides"], dtype=dtype))
            else:
                tensors.append(None)
        for step in [*p["frozen_steps"], *p["steps"]]:
            for i, t in enumerate(p["tensors"]):
                if t["storage"] == "view" and tensors[i] is None and (base := tensors[t["index"]]) is not None:
                    tensors[i] = base.as_strided(t["sizes"], t["strides"], base.storage_offset() + t["offset"])
            self.step(step, tensors)
        outputs: dict[int, torch.Tensor] = {}
        # Those that own memory first: views of them may stand before them.
        for i, o in sorted(enumerate(p["outputs"]), key=lambda item: item[1]["alias_output"] >= 0):
            if o["alias_input"] >= 0:
                base = inputs[o["alias_input"]].detach()
            elif o["alias_output"] >= 0:
                base = outputs[o["alias_output"]]
            else:
                base = tensors[o["tensor"]]
            outputs[i] = base.as_strided(o["sizes"], o["strides"], base.storage_offset() + o["offset"])
        return [outputs[i] for i in range(len(outputs))]

    def step(self, step: dict[str, Any], tensors: list[Any]) -> None:
        if step["kind"] == "launch":
            kernel = self.program["kernels"][step["kernel"]]
            given = [tensors[t] for t in [*step["reads"], *step["writes"]]]
            given = [t.view(torch.uint8) if t.dtype in EIGHT_BITS else t for t in given]  # kernels see bits
            for i in range(len(given)):
                if not kernel["signature"][i].startswith("*"):
                    given[i] = given[i].item()
            grid = numbers(kernel["grid"], {f"n{i}": n for i, n in enumerate(step["sizes"])})
            if 0 not in grid:
                self.functions[step["kernel"]][tuple(grid)](*given, *step["sizes"])
        elif step["kind"] == "copy":
            tensors[step["writes"][0]].copy_(tensors[step["reads"][0]])
        elif step["kind"] == "call":
            namespace, name, overload = step["op"].split(".")
            op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
            schema = op._schema.arguments
            args, kwargs = [], {}
            for a, value in zip(schema, step["args"], strict=True):
                value = self.argument(value, tensors)
                if a.kwarg_only:
                    kwargs[a.name] = value
                else:
                    args.append(value)
            out = op(*args, **kwargs)
            flat = [
                x
                for r in (out if isinstance(out, (tuple, list)) else [out])
                for x in (r if isinstance(r, (tuple, list)) else [r])
            ]
            for t, value in zip(step["writes"], flat, strict=True):
                if t < 0:
                    continue
                kind = self.program["tensors"][t]
                if kind["storage"] == "extern" or tensors[t] is None:
                    tensors[t] = value
                    # As the executor does: strides as planned, memory of its own.
                    memory = value.untyped_storage().data_ptr()
                    shared = any(
                        x is not None and x.untyped_storage().data_ptr() == memory for x in tensors if x is not value
                    )
                    if list(value.stride()) != kind["strides"] or shared:
                        tensors[t] = torch.empty_strided(kind["sizes"], kind["strides"], dtype=value.dtype).copy_(value)
                else:
                    tensors[t].copy_(value)

    def argument(self, a: Any, tensors: list[Any]) -> Any:
        if isinstance(a, list):
            return [self.argument(x, tensors) for x in a]
        if not isinstance(a, tuple):
            return a
        kind = a[0]
        if kind == "ref":
            return tensors[a[1]]
        if kind == "size":
            return numbers(a[1], self.sizes)
        if kind == "dtype":
            return NUMBER_DTYPE[a[1]]
        if kind == "format":
            return [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d][a[1]]
        return {"device": torch.device("cpu"), "layout": torch.strided}[kind]
