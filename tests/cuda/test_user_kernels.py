"""Triton kernels of the program's own: which memory they write (from their TTIR, without a device), and programs that
launch them, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from triton_interpreter import interpret

triton = pytest.importorskip("triton")
tl = triton.language

from flashover._kernel_writes import UnknownMemory, Writes, writes_of  # noqa: E402  (behind the check for Triton)
from flashover._user_kernels import _Arguments  # noqa: E402

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "kernel_programs.py"


# ---- which memory


@triton.jit
def put(p, values):
    tl.store(p, values)


@triton.jit
def same(p):
    return p


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def carried(x, y, out, n, BLOCK: tl.constexpr):
    """Pointers that a loop moves: each goes its own way."""
    at = tl.arange(0, BLOCK)
    from_x, from_y, to = x + at, y + at, out + at
    for _ in range(n):
        tl.store(to, tl.load(from_x) + tl.load(from_y))
        from_x += BLOCK
        from_y += BLOCK
        to += BLOCK


@triton.jit
def exchanged(x, y, out, n, BLOCK: tl.constexpr):
    """Two pointers that a loop exchanges: what is written through one is written through both."""
    at = tl.arange(0, BLOCK)
    one, other = x + at, y + at
    for _ in range(n):
        tl.store(one, tl.load(out + at))
        one, other = other, one


@triton.jit
def whiled(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    source, target, i = x + at, out + at, 0
    while i < n:
        tl.store(target, tl.load(source) + tl.load(y))
        source += BLOCK
        target += BLOCK
        i += 1


@triton.jit
def early(x, y, out, n, BLOCK: tl.constexpr):
    if tl.program_id(0) >= n:
        return
    at = tl.arange(0, BLOCK)
    put(out + at, tl.sum(tl.load(x + at)) + tl.load(y + at))


@triton.jit
def chosen(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if n > 3:  # noqa: SIM108  (Triton takes pointers of a conditional expression for constants)
        target = same(y)
    else:
        target = out
    tl.store(target + at, tl.load(x + at))


@triton.jit
def counted(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + at).to(tl.int32), 1.0)
    tl.atomic_max(y + at, 2.0, mask=at < n)


@triton.jit
def described(x, y, out, n, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[n], strides=[1], block_shape=[BLOCK])
    target = tl.make_tensor_descriptor(out, shape=[n], strides=[1], block_shape=[BLOCK])
    target.store([0], source.load([0]) + tl.load(y + tl.arange(0, BLOCK)))


@triton.jit
def by_number(x, y, out, n, BLOCK: tl.constexpr):
    """A pointer on the way through a number is a pointer still."""
    at = tl.arange(0, BLOCK)
    target = (out.to(tl.int64) + 16).to(tl.pointer_type(tl.float32))
    tl.store(target + at, tl.load(x + at) + tl.load(y + at))


@triton.jit
def foreign(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.inline_asm_elementwise(
        "ld.global.f32 $0, [$1];", "=r,l", [x + at], dtype=tl.float32, is_pure=False, pack=1
    )
    tl.store(out + at, values + tl.load(y + at))


@triton.jit
def said(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.device_print("n", n)
    tl.store(out + at, tl.load(x + at) + tl.load(y + at))


@triton.jit
def nowhere(x, y, out, n, BLOCK: tl.constexpr):
    tl.store(tl.load(x).to(tl.int64).to(tl.pointer_type(tl.float32)), 1.0)


@triton.jit
def does_not_compile(x, y, out, n, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, n), 1.0)


@triton.jit
def constant_decides(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if BLOCK > 64:
        tl.store(y + at, tl.load(x + at))
    else:
        tl.store(out + at, tl.load(x + at))


def found(kernel: Any, block: int = 64) -> Writes:
    types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    return writes_of(kernel, types, {"BLOCK": block})


@pytest.mark.parametrize(
    ("kernel", "written", "acts"),
    [
        (add, "out", False),
        (carried, "out", False),
        (exchanged, "x y", False),
        (whiled, "out", False),
        (early, "out", False),
        (chosen, "y out", False),
        (counted, "y out", False),
        (described, "out", False),
        (by_number, "out", False),
        (foreign, "x out", True),
        (said, "out", True),
        (does_not_compile, "x y out", True),
        (constant_decides, "out", False),
    ],
    ids=lambda v: v.fn.__name__ if hasattr(v, "fn") else "",
)
def test_what_a_kernel_writes(kernel: Any, written: str, acts: bool) -> None:
    assert found(kernel) == Writes(frozenset(written.split()), acts)


def test_constants_decide_what_is_written() -> None:
    assert found(constant_decides, 128).names == {"y"}


def test_memory_that_is_no_argument() -> None:
    with pytest.raises(UnknownMemory, match="makes a pointer of a number"):
        found(nowhere)


# ---- descriptors


@pytest.mark.parametrize("given", [{}, {"padding": "nan"}, {"round_f32_to_tf32": True}], ids=str)
def test_a_descriptor_is_made_again_with_all_that_it_says(given: dict[str, Any]) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    if not given.keys() <= {f.name for f in fields(TensorDescriptor)}:
        pytest.skip("this Triton's descriptors have no such field")
    base = torch.zeros(64, 32)
    descriptor = TensorDescriptor(base, [64, 32], [32, 1], [16, 32], **given)
    arguments = _Arguments()
    assert arguments.put("x", descriptor, constexpr=False)
    assert arguments.descriptors[0].make(base, dict(arguments.numbers)) == descriptor


# ---- programs


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    return interpret(SCRIPT)


def test_programs_in_the_interpreter(outcomes: dict[str, Any]) -> None:
    wrong = {name: said for name, said in outcomes.items() if said is not None}
    assert len(outcomes) >= 25 and not wrong, "\n\n".join(f"{name}: {said}" for name, said in wrong.items())
