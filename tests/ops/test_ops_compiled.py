"""Single operators through the whole compiled pipeline (graph passes, loops, kernels, executor) against eager: op_db
calls that have a decomposition, and larger shapes than op_db's with special values."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from op_calls import DTYPE_NUMBER, encoded, flat_outputs, op_name, positional
from op_samples import op_db
from test_ops_decompose import UNINITIALISED, disagreement, largest, run_in_f64, run_special_samples, tensors_of
from test_ops_infer import SKIPPED, run_samples
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_map

from flashover import _C

aten = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
# Enough to notice a broken stage; the rest of op_db is `slow`.
QUICK = set(
    """
    add mul div where exp erf sigmoid nn.functional.gelu nn.functional.silu softmax sum mean var
    amax argmax cumsum nn.functional.layer_norm nn.functional.batch_norm nn.functional.embedding
    nn.functional.max_pool2d nn.functional.avg_pool2d cat index_select tril clamp pow roll eq any
    """.split()  # noqa: SIM905
)


def compiled_disagreement(func: Any, args: tuple, kwargs: dict, values: list[Any], result: Any) -> str | None:
    outs = flat_outputs(result)
    types = [(DTYPE_NUMBER[o.dtype], list(o.shape), list(o.stride())) for o in outs]
    plain = encoded(func, args, kwargs)
    got = _C.compile_text(_C.call_graph(op_name(func), plain, types)).run(tensors_of(values))
    reference = run_in_f64(func, values) or [None] * len(outs)
    for i, (g, e) in enumerate(zip(got, outs, strict=True)):
        why = disagreement(g, e, reference[i], largest(values))
        if not why and e.numel() and g.stride() != e.stride():
            why = f"strides {g.stride()} instead of {e.stride()}"
        if why:
            return f"{op_name(func)}{plain} result {i}: {why}"
    return None


class Checker:
    def __init__(self, per_kind: int) -> None:
        self.seen: Counter = Counter()
        self.per_kind = per_kind
        self.wrong: list[str] = []

    def visit(self, func: Any, args: tuple, kwargs: dict) -> Any:
        values = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, positional(func, args, kwargs))
        result = func(*args, **kwargs)
        try:
            if self.wanted(func, args, kwargs, result):
                why = compiled_disagreement(func, args, kwargs, positional(func, args, kwargs), result)
                self.wrong += [why] if why else []
        except Exception as e:
            self.wrong.append(f"{op_name(func)}{[str(v)[:80] for v in values]}: {type(e).__name__}: {str(e)[:400]}")
        return result

    def wanted(self, func: Any, args: tuple, kwargs: dict, result: Any) -> bool:
        name, outs, given = op_name(func), flat_outputs(result), tensors_of(positional(func, args, kwargs))
        if not name.startswith("aten.") or outs is None or func._schema.is_mutable or name.startswith(UNINITIALISED):
            return False
        if func._schema.returns[0].alias_info is not None or torch.Tag.nondeterministic_seeded in func.tags:
            return False  # views are results with an owner: tests of the trace
        if not all(t.dtype in DTYPE_NUMBER and t.layout == torch.strided for t in [*outs, *given]):
            return False
        types = [(DTYPE_NUMBER[o.dtype], list(o.shape), list(o.stride())) for o in outs]
        if _C.decompose(name, encoded(func, args, kwargs), types) is None:
            return False
        kind = (name, tuple(t.dtype for t in given), tuple(t.is_contiguous() for t in given))
        self.seen[kind] += 1
        return self.seen[kind] <= self.per_kind


def cases() -> list[Any]:
    ops = [o for o in op_db if o.name not in SKIPPED]
    return [pytest.param(o, id=o.formatted_name, marks=[] if o.name in QUICK else [pytest.mark.slow]) for o in ops]


@pytest.mark.parametrize("op", cases())
def test_compiled_operators_equal_eager(op: OpInfo) -> None:
    checker = Checker(per_kind=2)
    for dtype in DTYPES:
        if dtype in op.dtypes:
            for layout in ("as is", "transposed"):
                run_samples(op, dtype, layout, checker, limit=4)
            run_special_samples(op, dtype, checker, limit=2)
    assert not checker.wrong, "\n".join(checker.wrong[:5])


def wide(shape: tuple[int, ...], dtype: torch.dtype, scale: float) -> torch.Tensor:
    x = (torch.randn(shape, dtype=torch.float64) * scale).exp() * torch.randn(shape, dtype=torch.float64).sign()
    x = x.to(dtype)
    x.view(-1)[5:11] = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-30]).to(dtype)
    return x


UNARY = """
neg abs sign ceil floor round trunc frac exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal
sin cos asin acos atan tanh asinh acosh atanh erf erfc lgamma sigmoid relu logical_not isnan isinf
silu mish hardswish hardsigmoid softplus elu leaky_relu selu hardtanh gelu nan_to_num softshrink
hardshrink
""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", UNARY)
def test_elementary_functions_over_their_range(name: str) -> None:
    func = getattr(aten, name).default
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for scale in (1.5, 8.0):
            x = wide((3, 67, 131), dtype, scale)
            assert compiled_disagreement(func, (x,), {}, [*positional(func, (x,), {})], func(x)) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_bessel_function_also_where_the_exponential_overflows(dtype: torch.dtype) -> None:
    """Eager's is infinite from 89 on in f32 and bf16, and NaN at infinity; so f64 is the judge."""
    x = torch.cat([torch.linspace(-95, 95, 3001), torch.tensor([0.0, math.nan, math.inf])]).to(dtype)
    graph = _C.call_graph("aten.i0.default", encoded(aten.i0.default, (x,), {}), [(DTYPE_NUMBER[dtype], [len(x)], [1])])
    (got,) = _C.compile_text(graph).run([x])
    want = torch.i0(x.double()).to(dtype)
    want[-1] = math.inf
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got, want, rtol=8 * eps if dtype == torch.float64 else eps, atol=0, equal_nan=True)


def test_gelu_by_tanh_vanishes_far_left() -> None:
    x = torch.tensor([-1e30, -1e5, -20.0, 20.0, 1e30] * 8)
    values = positional(aten.gelu.default, (x,), {"approximate": "tanh"})
    result = aten.gelu.default(x, approximate="tanh")
    assert compiled_disagreement(aten.gelu.default, (x,), {"approximate": "tanh"}, values, result) is None
    types = [(6, [40], [1])]
    graph = _C.call_graph("aten.gelu.default", encoded(aten.gelu.default, (x,), {"approximate": "tanh"}), types)
    (got,) = _C.compile_text(graph).run([x])
    assert torch.equal(got[:3], torch.zeros(3)) and torch.equal(got[3:5], x[3:5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_columns_and_odd_sizes(dtype: torch.dtype) -> None:
    for shape, dims in [
        ((7, 1000), [1]),
        ((1000, 7), [0]),
        ((5, 33, 65), [0, 2]),
        ((4, 3, 29, 31), [2, 3]),
        ((3, 70000), [1]),
    ]:
        x = torch.randn(shape).to(dtype)
        for y in (x, x.transpose(0, 1).contiguous().transpose(0, 1)):
            calls: list[tuple] = [
                (f, y, dims) for f in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.var.correction)
            ]
            calls += [
                (aten.logsumexp.default, y, dims),
                (aten._softmax.default, y, dims[0], False),
                (aten.argmax.default, y, dims[0]),
            ]
            for func, *args in calls:
                values = positional(func, tuple(args), {})
                assert compiled_disagreement(func, tuple(args), {}, values, func(*args)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_and_pools_at_real_sizes(dtype: torch.dtype) -> None:
    w, x = torch.rand(64).to(dtype) + 0.1, torch.randn(2, 64, 13, 17).to(dtype)
    v, rows = torch.randn(768).to(dtype), torch.randn(3, 50, 768).to(dtype)
    calls: list[tuple] = [(aten.native_layer_norm.default, rows, [768], v, v, 1e-5)]
    for y in (x, x.contiguous(memory_format=torch.channels_last)):
        calls += [
            (aten.native_batch_norm.default, y, w, w, w, w, False, 0.1, 1e-5),
            (aten.native_batch_norm.default, y, w, w, None, None, True, 0.1, 1e-5),
            (aten.native_group_norm.default, y, w, w, 2, 64, 13 * 17, 8, 1e-5),
            (aten.avg_pool2d.default, y, [3, 3], [2, 2], [1, 1]),
            (aten._adaptive_avg_pool2d.default, y[:, :, :12, :16], [3, 4]),
            (aten.constant_pad_nd.default, y, [1, 2, 0, 3], 0.5),
            (aten.cat.default, [y, y * 2], 1),
            (aten.pixel_shuffle.default, y, 2),
        ]
    for func, *args in calls:
        values = positional(func, tuple(args), {})
        assert compiled_disagreement(func, tuple(args), {}, values, func(*args)) is None
