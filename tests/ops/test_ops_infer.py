"""Type rules against eager: dtype, sizes and strides of every aten call that op_db samples make below autograd."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from typing import Any

import pytest
import torch
from op_calls import DTYPE_NUMBER, LAYOUTS, NUMBER_DTYPE, Recorder, encoded, flat_outputs, op_name, positional, relaid
from op_samples import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten

from flashover import _C

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.int8, torch.complex64]
# Results that live in uninitialised or data-dependent shapes are not compared: there is no rule for them either.


class Checker:
    """Compares each call's result with the rule's answer; remembers what was covered."""

    def __init__(self) -> None:
        self.answered: dict[str, int] = {}
        self.unknown: dict[str, int] = {}
        self.wrong: list[str] = []

    def visit(self, func: Any, args: tuple, kwargs: dict) -> Any:
        name, values = op_name(func), positional(func, args, kwargs)
        given = [v for v in tree_flatten(values)[0] if isinstance(v, torch.Tensor)]
        known = all(t.dtype in DTYPE_NUMBER and t.layout == torch.strided for t in given)
        try:
            plain = encoded(func, args, kwargs) if known and name.startswith("aten.") else None
            rule = None if plain is None else _C.infer(name, plain)
        except Exception as e:  # samples that raise are skipped by the caller: keep our own failures
            self.wrong.append(f"{name}: {type(e).__name__}: {e}")
            rule = None
        result = func(*args, **kwargs)
        outs = flat_outputs(result)
        if rule is None or outs is None:
            self.unknown[name] = self.unknown.get(name, 0) + 1
            return result
        self.answered[name] = self.answered.get(name, 0) + 1
        want = [(o.dtype, tuple(o.shape), tuple(o.stride())) for o in outs]
        got = [(NUMBER_DTYPE[d], tuple(s), tuple(st)) for d, s, st, _ in rule]
        aliases = func._schema.returns[0].alias_info is not None
        offsets = [o.storage_offset() for o in outs]
        if got != want or (aliases and [r[3] for r in rule] != offsets):
            self.wrong.append(f"{name}{plain}: rule {rule}, eager {want} {offsets}")
        return result


def run_samples(op: OpInfo, dtype: torch.dtype, layout: str, checker: Checker, limit: int = 40) -> int:
    ran = 0
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            samples = list(zip(range(limit), op.sample_inputs("cpu", dtype, requires_grad=False), strict=False))
        except Exception:
            return 0
        for _, sample in samples:
            sample = sample.transform(lambda t: t.detach() if isinstance(t, torch.Tensor) else t)
            try:
                args = [relaid(v, layout) for v in (sample.input, *sample.args)]
                kwargs = {k: relaid(v, layout) for k, v in sample.kwargs.items()}
                with Recorder(checker.visit):
                    op.op(*args, **kwargs)
                ran += 1
            except Exception:
                continue
    return ran


def run_writers(op: OpInfo, dtype: torch.dtype, checker: Checker, limit: int = 6) -> None:
    """The in-place variant and the out= form, the latter with a result tensor of the right sizes."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            samples = list(zip(range(limit), op.sample_inputs("cpu", dtype, requires_grad=False), strict=False))
        except Exception:
            return
        for _, sample in samples:
            try:
                expected = op.op(sample.input, *sample.args, **sample.kwargs)
                calls = []
                if op.inplace_variant and isinstance(sample.input, torch.Tensor):
                    calls.append(lambda s=sample: op.inplace_variant(s.input.clone(), *s.args, **s.kwargs))
                if op.supports_out and isinstance(expected, torch.Tensor):
                    calls.append(
                        lambda s=sample, e=expected: op.op(s.input, *s.args, **s.kwargs, out=torch.empty_like(e))
                    )
            except Exception:
                continue
            for call in calls:
                try:
                    with Recorder(checker.visit):
                        call()
                except Exception:
                    continue


def run_gradients(op: OpInfo, dtype: torch.dtype, checker: Checker, limit: int = 6) -> None:
    """What the derivative formulas call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            samples = list(zip(range(limit), op.sample_inputs("cpu", dtype, requires_grad=True), strict=False))
        except Exception:  # some generators need what this host lacks
            return
        for _, sample in samples:
            try:
                leaves = [t for t in tree_flatten((sample.input, sample.args, sample.kwargs))[0] if grad_leaf(t)]
                outs = [t for t in tree_flatten(op.op(sample.input, *sample.args, **sample.kwargs))[0] if has_grad(t)]
                with Recorder(checker.visit):
                    torch.autograd.grad(outs, leaves, [torch.randn_like(o) for o in outs], allow_unused=True)
            except Exception:  # no gradient here
                continue


def has_grad(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.requires_grad


def grad_leaf(t: Any) -> bool:
    return has_grad(t) and t.is_leaf


SKIPPED = {"empty_strided"}


@pytest.mark.parametrize("op", [o for o in op_db if o.name not in SKIPPED], ids=lambda o: o.formatted_name)
def test_rule_equals_eager(op: OpInfo) -> None:
    checker = Checker()
    for dtype in DTYPES:
        if dtype not in op.dtypes:
            continue
        for layout in LAYOUTS:
            run_samples(op, dtype, layout, checker, limit=12)
        run_writers(op, dtype, checker)
        if dtype in (torch.float32, torch.bfloat16) and op.supports_autograd:
            run_gradients(op, dtype, checker)
    assert not checker.wrong, "\n".join(checker.wrong[:5])


def test_breadth() -> None:
    with_rule = [n for n, rule, *_ in _C.op_names() if rule and n.startswith("aten.")]
    assert len(with_rule) >= 250, len(with_rule)


def spatial_calls(x: torch.Tensor) -> list[Any]:
    """What CNNs do to a batch of images."""
    f, c = torch.nn.functional, x.shape[1]
    ones = torch.ones(c)
    wide = torch.randn(4, c, 1, 1)
    return [
        lambda: torch.native_batch_norm(x, ones, ones, ones, ones, False, 0.1, 1e-5),
        lambda: torch.native_batch_norm(x, ones, ones, None, None, True, 0.1, 1e-5),
        lambda: f.group_norm(x, 1, ones, ones),
        lambda: f.layer_norm(x, x.shape[1:]),
        lambda: f.conv2d(x, wide),
        lambda: f.conv2d(x, wide.contiguous(memory_format=torch.channels_last), stride=2),
        lambda: f.conv2d(x, torch.randn(c, 1, 3, 3), padding=1, groups=c),
        lambda: f.conv2d(x, torch.randn(4, c, 3, 3), padding=2, dilation=2),
        lambda: f.conv_transpose2d(x, torch.randn(c, 4, 2, 2), stride=2),
        lambda: f.max_pool2d(x, 3, 1, 1),
        lambda: f.avg_pool2d(x, 3, 1, 1),
        lambda: f.adaptive_avg_pool2d(x, (2, 2)),
        lambda: f.adaptive_avg_pool2d(x, 1),
        lambda: f.adaptive_max_pool2d(x, (2, 2)),
        lambda: f.interpolate(x, scale_factor=2),
        lambda: f.interpolate(x, size=(5, 7), mode="bilinear"),
        lambda: f.pad(x, (1, 1, 0, 2)),
        lambda: f.pad(x, (-0, 0)),
        lambda: f.pad(x, (1, 1, 1, 1), mode="replicate"),
        lambda: torch.cat([x, x], 1),
        lambda: torch.cat([x, x.contiguous()], 0),
        lambda: torch.stack([x, x]),
        lambda: x + ones.reshape(1, c, 1, 1),
        lambda: x + x.contiguous(),
        lambda: x.contiguous() * x,
        lambda: x.mean((2, 3), keepdim=True) * x,
        lambda: torch.relu(x),
        lambda: x.softmax(1),
        lambda: x.clone(),
        lambda: x.to(torch.float64),
        lambda: x.contiguous(memory_format=torch.channels_last),
        lambda: torch.zeros_like(x),
        lambda: x.flip(1),
        lambda: x.sort(1),
        lambda: x[:, torch.tensor([0])],
        lambda: x.flatten(1),
        lambda: f.pixel_unshuffle(x, 1),
        lambda: torch.where(x > 0, x, 0.0),
        lambda: f.dropout(x, 0.5),
        lambda: f.prelu(x, ones),
        lambda: f.glu(torch.cat([x, x], 1), 1),
    ]


@pytest.mark.parametrize(
    "sizes", [(1, 6, 1, 1), (2, 6, 1, 1), (2, 1, 4, 4), (1, 1, 4, 1), (1, 3, 4, 1), (2, 3, 4, 5), (1, 3, 1, 5)]
)
def test_layouts_of_unit_dims(sizes: tuple[int, ...]) -> None:
    """Strides of dims of size one decide which format ATen sees."""
    checker = Checker()
    for order in itertools.permutations(range(4)):
        dense = torch.randn([sizes[d] for d in order]).permute([order.index(d) for d in range(4)])
        odd = dense.as_strided(sizes, [7 if s == 1 else t for s, t in zip(sizes, dense.stride(), strict=True)])
        for x in (dense, odd):
            for call in spatial_calls(x):
                with torch.no_grad(), Recorder(checker.visit), contextlib.suppress(RuntimeError):
                    call()
    assert sum(checker.answered.values()) > 1000
    assert not checker.wrong, f"{len(checker.wrong)}\n" + "\n".join(checker.wrong[:8])


def test_what_rows_say_of_writing_is_what_schemas_say() -> None:
    """A row of an in-place operator that forgets what it writes loses the write."""
    seen = 0
    for name, (mutates, twin, drops, _) in _C.op_effects().items():
        if not name.startswith("aten."):
            continue
        schema = schema_of(name)
        written = [i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
        assert mutates == sum(1 << i for i in written), name
        seen += bool(written)
        if not twin:
            continue
        kept = [a for i, a in enumerate(schema.arguments) if not (drops and i in written)]
        assert [str(a.type) for a in schema_of(twin).arguments] == [str(a.type) for a in kept], (name, twin)
    assert seen > 100


def schema_of(name: str) -> Any:
    _, op, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, op), overload)._schema
