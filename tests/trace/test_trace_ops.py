"""op_db sweep: each operator's first sample, traced, replayed and compared with eager; contiguous and permuted inputs.

CI runs a slice of the database; `-m slow` runs all of it.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from op_samples import DECLINES, RANDOM, op_db
from trace_tools import Program, same, tensors_of, trace, type_text

import flashover
from flashover import _C

# An empty result, whose strides nobody can use.
META_STRIDES = {"nonzero_static"}


def clone(value: Any) -> Any:
    return copy.deepcopy(value)


def permuted(t: Any) -> Any:
    """The same values with the last two dims' memory order swapped."""
    if not isinstance(t, torch.Tensor) or t.dim() < 2 or t.layout != torch.strided:
        return t
    if t.dim() == 4:
        return t.detach().clone().contiguous(memory_format=torch.channels_last).requires_grad_(t.requires_grad)
    return t.detach().transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_(t.requires_grad)


def one(op: Any, arrange: Any) -> list[str]:
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=False)))
    args = torch.utils._pytree.tree_map(arrange, (sample.input, list(sample.args), dict(sample.kwargs)))

    def fn(x: Any, rest: Any, kwargs: Any) -> Any:
        return op.op(x, *rest, **kwargs)

    try:
        torch.manual_seed(0)
        expected = tensors_of(fn(*clone(args)))
    except Exception:  # eager itself cannot
        return []
    if any(t.layout != torch.strided or t.is_conj() or t.is_neg() for t in expected):
        return []
    given = clone(args)
    traced = trace(Program(fn, given))
    traced.verify()
    torch.manual_seed(0)
    with torch.no_grad():
        got = traced.run(traced.inputs)
    assert len(got) == len(expected)
    plain = op.name.split(".")[-1]
    for i, (g, e) in enumerate(zip(got, expected, strict=True)):
        same(g, e, f"output {i}", bits=plain not in RANDOM and op.name not in RANDOM)
    for text, g in zip(traced.output_types, got, strict=True):
        assert text == type_text(g) or op.name in META_STRIDES, f"the trace promised {text}, eager gives {type_text(g)}"
    return traced.python_meta_ops


def sweep(ops: list[Any], arrange: Any) -> tuple[dict[str, str], dict[str, int]]:
    failures: dict[str, str] = {}
    python_metas: dict[str, int] = {}
    for op in ops:
        name = op.name + (("." + op.variant_test_name) if op.variant_test_name else "")
        try:
            for meta in one(op, arrange):
                python_metas[meta] = python_metas.get(meta, 0) + 1
        except _C.Declined as e:
            if op.name not in DECLINES:
                failures[name] = f"declined: {e}"
        except Exception as e:
            if op.name in DECLINES and "data of a tensor" in str(e):
                continue
            failures[name] = f"{type(e).__name__}: {str(e)[:300]}"
    return failures, python_metas


OPS = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu") and op.name != "sparse.mm"]


@pytest.mark.timeout(120)
def test_some_ops() -> None:
    failures, _ = sweep(OPS[::12], lambda t: t)
    assert not failures, "\n".join(f"{k}: {v}" for k, v in failures.items())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", ["contiguous", "permuted"])
def test_all_ops(layout: str) -> None:
    failures, _ = sweep(OPS, permuted if layout == "permuted" else (lambda t: t))
    assert not failures, f"{len(failures)} of {len(OPS)}:\n" + "\n".join(f"{k}: {v}" for k, v in failures.items())


# Formulas of autograd that look at data, or gradients that torch has no shape function for.
BACKWARD_DECLINES = {
    "cumprod", "masked.cumprod", "prod", "masked.prod", "max", "min", "median", "nanmedian", "amax", "linalg.eig",
    "nn.functional.ctc_loss",
    "nn.functional.multi_margin_loss", "nn.functional.multilabel_margin_loss", "nn.functional.fractional_max_pool3d",
    "msort",
    "nn.functional.huber_loss", "linalg.norm", "norm", "masked.norm", "linalg.vector_norm",
}  # fmt: skip


def joint(op: Any) -> None:
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=True)))
    everything = (sample.input, list(sample.args), dict(sample.kwargs))
    leaves = [t for t in tensors_of(everything) if t.requires_grad and t.is_leaf]

    def run(x: Any, rest: Any, kwargs: Any) -> list[torch.Tensor]:
        outs = [t for t in tensors_of(op.op(x, *rest, **kwargs)) if t.requires_grad]
        total = sum((t.abs() if t.is_complex() else t).sum() for t in outs)
        return [g for g in torch.autograd.grad(total, leaves, allow_unused=True) if g is not None]

    try:
        torch.manual_seed(0)
        expected = run(*everything)
    except Exception:
        return
    traced = trace(Program(run, everything))
    traced.verify()
    torch.manual_seed(0)
    got = traced.run(traced.inputs)
    assert len(got) == len(expected)
    plain = op.name.split(".")[-1]
    for i, (g, e) in enumerate(zip(got, expected, strict=True)):
        same(g, e, f"gradient {i}", bits=plain not in RANDOM and op.name not in RANDOM, strides=g.numel() > 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_gradients() -> None:
    failures: dict[str, str] = {}
    for op in OPS:
        if not op.supports_autograd or op.name.startswith("sparse."):
            continue
        name = op.name + (("." + op.variant_test_name) if op.variant_test_name else "")
        try:
            joint(op)
        except _C.Declined as e:
            if op.name not in DECLINES | BACKWARD_DECLINES:
                failures[name] = f"declined: {str(e)[:200]}"
        except Exception as e:
            if op.name in DECLINES and "data of a tensor" in str(e):
                continue
            failures[name] = f"{type(e).__name__}: {str(e)[:200]}"
    assert not failures, f"{len(failures)} of {len(OPS)}:\n" + "\n".join(f"{k}: {v}" for k, v in failures.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.int8, torch.int64])
def test_new_memory_is_filled_where_results_are_deterministic(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.empty(3, 2, dtype=dtype),
            torch.empty_like(x, dtype=dtype),
            torch.empty_strided((2, 3), (1, 2), dtype=dtype),
            x.new_empty(x.shape[0] + 1, dtype=dtype),
            torch.empty_permuted((2, 3), (1, 0), dtype=dtype),
        )

    fast, x = flashover.compile(f, fullgraph=True), torch.ones(4)
    torch.use_deterministic_algorithms(True)
    try:
        for got, want in zip(fast(x), f(x), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)
            assert got.stride() == want.stride()
    finally:
        torch.use_deterministic_algorithms(False)
