"""Trace a function without the frame interpreter, replay the graph, hold both against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten  # tests only

from flashover import _C


def tensors_of(result: Any) -> list[torch.Tensor]:
    return [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]


def same(a: torch.Tensor, b: torch.Tensor, what: str, *, bits: bool = True, strides: bool = True) -> None:
    assert a.dtype == b.dtype, f"{what}: dtype {a.dtype} != {b.dtype}"
    assert a.shape == b.shape, f"{what}: shape {tuple(a.shape)} != {tuple(b.shape)}"
    if strides:
        assert a.stride() == b.stride(), f"{what}: strides {a.stride()} != {b.stride()}"
        assert a.storage_offset() == b.storage_offset(), f"{what}: offset {a.storage_offset()} != {b.storage_offset()}"
    if bits:
        assert torch.equal(plain(a), plain(b)), f"{what}: values differ"


def plain(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    if t.dtype is torch.complex32:
        t = torch.view_as_real(t)
    return torch.nan_to_num(t) if t.dtype.is_floating_point or t.dtype.is_complex else t


class Program:
    """fn(*args) with tensors among args and the parameters and buffers of `module`."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], module: torch.nn.Module | None = None) -> None:
        self.fn, self.args, self.module = fn, list(args), module

    def inputs(self) -> list[tuple[str, str, torch.Tensor]]:
        out = [(f"a{i}", "user", t) for i, t in enumerate(tensors_of(self.args))]
        if self.module is not None:
            out += [(n, "param", p) for n, p in self.module.named_parameters()]
            out += [(n, "buffer", b) for n, b in self.module.named_buffers()]
        unique: dict[int, tuple[str, str, torch.Tensor]] = {}
        for item in out:
            unique.setdefault(id(item[2]), item)
        return list(unique.values())


def trace(program: Program) -> _C.Traced:
    compiling, torch.compiler._is_compiling_flag = torch.compiler._is_compiling_flag, True
    try:
        return _C.trace_function(lambda: tensors_of(program.fn(*program.args)), program.inputs())
    finally:
        torch.compiler._is_compiling_flag = compiling


def check(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    module: torch.nn.Module | None = None,
    *,
    bits: bool = True,
    seed: int | None = None,
) -> _C.Traced:
    """Eager on one copy of everything, trace and replay on another: outputs, strides and written inputs agree."""
    memo: dict[int, Any] = {}
    args2, module2, fn2 = (
        copy.deepcopy((list(args), module, fn), memo) if module is not None else (copy.deepcopy(list(args)), None, fn)
    )
    eager, traced_program = Program(fn2, args2, module2), Program(fn, args, module)
    before = [
        (t, t.detach().clone(), t._version if not t.is_inference() else 0, t.requires_grad, type(t))
        for _, _, t in traced_program.inputs()
    ]
    traced = trace(traced_program)
    traced.verify()
    for t, value, version, requires_grad, kind in before:
        same(t, value, "input after the trace", strides=False)
        assert type(t) is kind and t.requires_grad == requires_grad and (t.is_inference() or t._version == version)
    if seed is not None:
        torch.manual_seed(seed)
    expected = tensors_of(eager.fn(*eager.args))
    if seed is not None:
        torch.manual_seed(seed)
    with torch.no_grad():
        got = traced.run(traced.inputs)
    assert len(got) == len(expected)
    for i, (g, e) in enumerate(zip(got, expected, strict=True)):
        same(g, e, f"output {i}", bits=bits)
    for (name, _, a), (_, _, b) in zip(traced_program.inputs(), eager.inputs(), strict=True):
        same(a, b, f"input {name}", bits=bits)
    return traced


def trained(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A training step: the result and the gradients of the arguments that require one."""

    def step(*args: torch.Tensor) -> list[torch.Tensor]:
        y = function(*args)
        loss = (y.float() * torch.arange(y.numel()).view(y.shape).remainder(7)).sum() / y.numel()
        return [y.detach(), *torch.autograd.grad(loss, [a for a in args if a.requires_grad])]

    return step


NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32",
         torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b8", torch.complex64: "c64",
         torch.complex128: "c128",
         torch.complex32: "c32", torch.uint64: "u64"}  # fmt: skip


def type_text(t: torch.Tensor) -> str:
    contiguous, step = [], 1
    for size in reversed(t.shape):
        contiguous.insert(0, step)
        step *= max(size, 1)
    text = f"{NAMES[t.dtype]}[{','.join(map(str, t.shape))}]"
    if list(t.stride()) != contiguous:
        text += "{" + ",".join(map(str, t.stride())) + "}"
    return text + (f"+{t.storage_offset()}" if t.storage_offset() else "")
