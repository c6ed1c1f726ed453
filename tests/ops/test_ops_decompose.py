"""Decompositions against eager: every aten call of op_db samples that has one is rebuilt out of prims, run by a plain
evaluator and held against an fp64 run of the call: error at most twice eager's own, NaN and infinities where eager
has them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from op_calls import DTYPE_NUMBER, Recorder, encoded, flat_outputs, op_name, positional
from op_samples import op_db
from prim_eval import evaluate
from test_ops_infer import SKIPPED, run_gradients, run_samples
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_map

from flashover import _C

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
LAYOUTS = ["as is", "transposed"]
UNINITIALISED = ("aten.empty", "aten.new_empty")


def tensors_of(values: list[Any]) -> list[torch.Tensor]:
    return [v for v in tree_flatten(values)[0] if isinstance(v, torch.Tensor)]


def largest(values: list[Any]) -> float:
    """Of the finite float elements: sums may cancel down from there."""
    floats = [t[t.isfinite()] for t in tensors_of(values) if t.is_floating_point()]
    return max((t.abs().max().item() for t in floats if t.numel()), default=0.0)


def in_f64(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def run_in_f64(func: Any, values: list[Any]) -> list[torch.Tensor] | None:
    wide = [[in_f64(x) for x in v] if isinstance(v, (list, tuple)) else in_f64(v) for v in values]
    named = {a.name: v for a, v in zip(func._schema.arguments, wide, strict=True) if a.kwarg_only}
    try:
        return flat_outputs(func(*wide[: len(wide) - len(named)], **named))
    except Exception:  # no f64 kernel
        return None


def disagreement(
    got: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor | None, inputs: float = 0.0
) -> str | None:
    if got.dtype != eager.dtype or got.shape != eager.shape:
        return f"{got.dtype}{list(got.shape)} instead of {eager.dtype}{list(eager.shape)}"
    if not eager.is_floating_point():
        return None if torch.equal(got, eager) else f"{got} instead of {eager}"
    if torch.equal(got.nan_to_num(7), eager.nan_to_num(7)) and torch.equal(got.isnan(), eager.isnan()):
        return None
    g, e = got.double(), eager.double()
    r = e if reference is None or reference.shape != e.shape else reference.double()
    if not torch.equal(g.isnan(), e.isnan()) and not torch.equal(g.isnan(), r.isnan()):
        return f"NaN where eager has none or the reverse: {got} instead of {eager}"
    finite = g.isfinite() & e.isfinite() & r.isfinite()
    other = ~finite & ~g.isnan() & ~e.isnan()
    if not torch.equal(g[other], e[other]) and not torch.equal(g[other], r[other].to(got.dtype).double()):
        return f"infinities differ: {got} instead of {eager}"
    g, e, r = g[finite], e[finite], r[finite]
    if not r.numel():
        return None
    eps = torch.finfo(eager.dtype).eps
    scale = r.abs().max().item()
    floor = 4 * eps * r.abs() + eps * max(scale, 2 * inputs) + torch.finfo(eager.dtype).smallest_normal
    if eager.dtype == torch.float64:  # the reference is eager itself: only the order of operations may differ
        floor = floor + 64 * eps * (max(scale, inputs) + 1)
    # One element may be lucky in eager: its error is what eager does anywhere near this magnitude.
    near = (e - r).abs().max() * (r.abs() / (scale or 1.0)).clamp(max=1)
    bad = (g - r).abs() > 2 * torch.maximum((e - r).abs(), near) + floor
    if bad.any():
        i = int(torch.nonzero(bad)[0])
        error = abs(g[i] - r[i]).item()
        return f"{g[i].item()!r} instead of {e[i].item()!r}, exactly {r[i].item()!r} (error {error:.3g})"
    return None


def zero_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value._is_zerotensor()


class Checker:
    """Checks each call that has a decomposition; remembers what was covered."""

    def __init__(self) -> None:
        self.checked: dict[str, int] = {}
        self.extern: dict[str, int] = {}
        self.wrong: list[str] = []

    def visit(self, func: Any, args: tuple, kwargs: dict) -> Any:
        values = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, positional(func, args, kwargs))
        result = func(*args, **kwargs)
        try:
            self.check(func, args, kwargs, values, result)
        except Exception as e:  # samples that raise are skipped by the caller: keep our own failures
            self.wrong.append(f"{op_name(func)}: {type(e).__name__}: {str(e)[:600]}")
        return result

    def check(self, func: Any, args: tuple, kwargs: dict, values: list[Any], result: Any) -> None:
        name, outs = op_name(func), flat_outputs(result)
        # Reading a tensor of zeros that has no memory crashes under a dispatch mode.
        outs = outs and [torch.zeros(t.shape, dtype=t.dtype) if zero_tensor(t) else t for t in outs]
        values = tree_map(lambda v: torch.zeros(v.shape, dtype=v.dtype) if zero_tensor(v) else v, values)
        if not name.startswith("aten.") or outs is None or func._schema.is_mutable or name.startswith(UNINITIALISED):
            return
        tensors = [*outs, *tensors_of(values)]
        if not all(t.dtype in DTYPE_NUMBER and t.layout == torch.strided for t in tensors):
            return
        if not all(t.is_cpu for t in tensors):  # torch has samples that name a GPU, on machines with one
            return
        types = [(DTYPE_NUMBER[o.dtype], list(o.shape), list(o.stride())) for o in outs]
        plain = encoded(func, args, kwargs)
        graph = _C.decompose(name, plain, types)
        if graph is None:
            self.extern[name] = self.extern.get(name, 0) + 1
            return
        self.checked[name] = self.checked.get(name, 0) + 1
        got = evaluate(graph, tensors_of(values))
        reference = run_in_f64(func, values) or [None] * len(outs)
        for i, (g, e) in enumerate(zip(got, outs, strict=True)):
            why = g is not None and disagreement(g, e, reference[i], largest(values))
            if why:
                self.wrong.append(f"{name}{plain} result {i}: {why}")


def with_specials(value: Any) -> Any:
    """NaN, infinities, signed zeros and denormals among the elements of float tensors."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 6 and value.is_contiguous():
        value = value.detach().clone()
        specials = [math.nan, math.inf, -math.inf, 0.0, -0.0, torch.finfo(value.dtype).tiny]
        value.view(-1)[: len(specials)] = torch.tensor(specials, dtype=value.dtype)
    return value


def run_special_samples(op: OpInfo, dtype: torch.dtype, checker: Checker, limit: int) -> None:
    with torch.no_grad():
        try:
            samples = list(zip(range(limit), op.sample_inputs("cpu", dtype, requires_grad=False), strict=False))
        except Exception:
            return
        for _, sample in samples:
            try:
                args = tree_map(with_specials, [sample.input, *sample.args])
                with Recorder(checker.visit):
                    op.op(*args, **sample.kwargs)
            except Exception:  # eager rejects these values
                continue


@pytest.mark.parametrize("op", [o for o in op_db if o.name not in SKIPPED], ids=lambda o: o.formatted_name)
def test_decompositions_equal_eager(op: OpInfo) -> None:
    checker = Checker()
    for dtype in DTYPES:
        if dtype in op.dtypes:
            for layout in LAYOUTS:
                run_samples(op, dtype, layout, checker, limit=8)
            run_special_samples(op, dtype, checker, limit=4)
            if dtype in (torch.float32, torch.bfloat16) and op.supports_autograd:
                run_gradients(op, dtype, checker, limit=4)
    assert not checker.wrong, "\n".join(checker.wrong[:5])


def check_without_last(func: Any, *args: Any) -> None:
    wanted = func(*args)[0]
    types = [(DTYPE_NUMBER[wanted.dtype], list(wanted.shape), list(wanted.stride())), None]
    graph = _C.decompose(op_name(func), encoded(func, args, {}), types)
    assert graph is not None
    got = evaluate(graph, [args[0]])
    assert got[1] is None
    assert disagreement(got[0], wanted, None) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_without_indices(dtype: torch.dtype) -> None:
    """Max pooling and running extrema have prims only for their values."""
    x = torch.randn(2, 3, 17, 19).to(dtype)
    x[0, 0, 3, 4], x[1, 2, 0, 0] = math.nan, -math.inf
    pool = torch.ops.aten.max_pool2d_with_indices.default
    for args in [([3, 3], [2, 2], [1, 1]), ([2, 3], [], [0, 1], [2, 1]), ([3, 3], [2, 2], [1, 1], [1, 1], True)]:
        check_without_last(pool, x, *args)
    for op in (torch.ops.aten.cummax.default, torch.ops.aten.cummin.default):
        for dim in (0, -1):
            check_without_last(op, x, dim)


def test_breadth() -> None:
    known = [n for n, _, decomposed, _ in _C.op_names() if decomposed]
    assert len(known) >= 250, len(known)
