"""Runs plans of Triton kernels on CPU tensors, in Triton's interpreter. Only for a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import linecache
import os
import sys
from typing import Any

import torch
from op_calls import NUMBER_DTYPE

assert os.environ.get("TRITON_INTERPRET") == "1"
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "python", "flashover"))

DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "b8": torch.bool,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
EIGHT_BITS = {torch.float8_e4m3fn, torch.float8_e5m2}


def function_of(source: dict[str, Any]) -> Any:
    filename = f"<{source['name']}>"
    text = source["text"]
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    scope: dict[str, Any] = {"__name__": source["name"]}
    exec(compile(text, filename, "exec"), scope)
    return scope[source["name"]]


class Runner:
    def __init__(self, program: dict[str, Any]) -> None:
        self.program = program
        self.functions = [function_of(k) for k in program["kernels"]]

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
                flat = arena[t["arena"] : t["arena"] + span * size].view(dtype)
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
            for i, kind in enumerate(kernel["signature"]):
                if not kind.startswith("*"):
                    given[i] = given[i].item()
            self.functions[step["kernel"]][tuple(kernel["grid"])](*given)
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
        if kind == "dtype":
            return NUMBER_DTYPE[a[1]]
        if kind == "format":
            return [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d][a[1]]
        return {"device": torch.device("cpu"), "layout": torch.strided}[kind]
