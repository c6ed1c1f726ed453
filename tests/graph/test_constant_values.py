"""What the constant evaluator of graph passes computes is what eager computes (src/ops/scalar.h)."""

from __future__ import annotations

import math
import re
from itertools import product

import pytest
import torch

from flashover import _C

DTYPES = {
    "f32": (torch.float32, [0.0, -0.0, 1.5, -2.75, 3e38, 1e-45, math.inf, -math.inf, math.nan]),
    "f64": (torch.float64, [0.0, -0.0, 0.1, -1e308, math.inf, math.nan]),
    "bf16": (torch.bfloat16, [0.0, 1.0, 1.0078125, -3.3e38, math.inf, math.nan]),
    "f16": (torch.float16, [0.0, 65504.0, -65504.0, 6e-8, 1.0009765625, math.nan]),
    "i64": (torch.int64, [0, 1, -1, 2**40, -(2**52)]),
    "i32": (torch.int32, [0, 1, -7, 2**31 - 1, -(2**31)]),
    "i8": (torch.int8, [0, 1, -1, 127, -128]),
    "u8": (torch.uint8, [0, 1, 7, 255]),
    "b8": (torch.bool, [True, False]),
}
FLOATS, INTEGERS = ("f32", "f64", "bf16", "f16"), ("i64", "i32", "i8", "u8")
UNARY = {
    "neg": (torch.neg, FLOATS + INTEGERS),
    "abs": (torch.abs, FLOATS + INTEGERS),
    "floor": (torch.floor, FLOATS),
    "ceil": (torch.ceil, FLOATS),
    "relu": (torch.relu, FLOATS + INTEGERS),
    "isnan": (torch.isnan, FLOATS),
    "isinf": (torch.isinf, FLOATS),
    "logical_not": (torch.logical_not, ("b8",)),
    "bitwise_not": (torch.bitwise_not, ("b8",)),
}
ALL = (*FLOATS, *INTEGERS, "b8")
BINARY = {
    "add": (torch.add, ALL),
    "sub": (torch.sub, FLOATS + INTEGERS),
    "mul": (torch.mul, ALL),
    "minimum": (torch.minimum, ALL),
    "maximum": (torch.maximum, ALL),
    **{name: (getattr(torch, name), ALL) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"bitwise_{name}": (getattr(torch, f"bitwise_{name}"), ("b8",)) for name in ("and", "or", "xor")},
}


def literal(value: float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def folded(op: str, dtype: str, result: str, operands: tuple[float, ...]) -> str | None:
    """The number that the graph returns, or None: the pass does not say."""
    lines = [f"  %{i} : {dtype}[] = prim.full([], {literal(v)}, {dtype}, cpu)" for i, v in enumerate(operands)]
    args = ", ".join(f"%{i}" for i in range(len(operands)))
    n = len(operands)
    lines += [f"  %{n} : {result}[] = prim.{op}({args})"]
    lines += [
        f"  %{n + 1} : {result}[] = aten.clone.default(%{n}, None)"
    ]  # constants are found where operators read them
    text = "\n".join(["graph {", *lines, f"  return %{n + 1}", "}\n"])
    out = _C.run_pass("dce", _C.run_pass("fold", text))
    assert " input " not in out
    found = re.search(r"prim\.full\(\[\], ([^,]+), ", out)
    return found[1] if found and f"prim.{op}" not in out else None


def same(got: str, want: torch.Tensor) -> bool:
    if want.dtype == torch.bool:
        return got in (("true", "1", "1.0") if want.item() else ("false", "0", "0.0"))
    value = torch.tensor(float(got) if want.is_floating_point() else int(float(got)), dtype=want.dtype)
    return torch.equal(value.nan_to_num(7), want.nan_to_num(7)) and bool(value.isnan() == want.isnan())


CASES = [(op, f, 1, d) for op, (f, ds) in UNARY.items() for d in ds]
CASES += [(op, f, 2, d) for op, (f, ds) in BINARY.items() for d in ds]


@pytest.mark.parametrize(("op", "eager", "arity", "dtype"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_constants_are_eagers(op: str, eager, arity: int, dtype: str) -> None:
    torch_dtype, values = DTYPES[dtype]
    known = 0
    for operands in product(values, repeat=arity):
        want = eager(*(torch.tensor(v, dtype=torch_dtype) for v in operands))
        result = "b8" if want.dtype == torch.bool else dtype
        got = folded(op, dtype, result, tuple(v.item() for v in torch.tensor(operands, dtype=torch_dtype)))
        if got is not None:
            known += 1
            assert same(got, want), f"prim.{op}{operands} of {dtype} is {got}, eager's is {want.item()}"
    assert known >= len(values) ** arity // 2, f"{known} of {len(values) ** arity} are known"
