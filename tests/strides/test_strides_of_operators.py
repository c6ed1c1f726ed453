"""The strides that a trace promises are eager's: every operator of torch's table over layouts of its operands."""

from __future__ import annotations

import itertools
import random
from typing import Any

import op_samples
import pytest
import torch
from op_samples import DECLINES, RANDOM
from torch.utils._pytree import tree_map
from trace_tools import Program, tensors_of, trace, type_text

import flashover
from flashover import _C

GROUPS, SAMPLES = 4, 4
# ldexp is a product with pow(2.0, exponent), whose strides torch's shape function takes for another order than ATen's.
OPEN = {"ldexp"}
# Of gradients. Transposed convolutions of weights in channels_last: strides of their gradients depend on the library
# that eager chooses. normalize by p=1: the stride of a dimension of size 1.
OPEN_GRADIENTS = {
    "nn.functional.conv_transpose2d",
    "nn.functional.conv_transpose3d",
    "nn.functional.normalize",
}


def permuted(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    order = rng.sample(range(t.dim()), t.dim())
    return t.permute(order).contiguous().permute([order.index(i) for i in range(t.dim())])


def spaced(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    d = rng.randrange(t.dim())
    return torch.stack([t, t], d + 1).flatten(d, d + 1)[(slice(None),) * d + (slice(None, None, 2),)]


def channels_last(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    if t.dim() == 5:
        return t.contiguous(memory_format=torch.channels_last_3d)
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


def expanded(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    return t.narrow(rng.randrange(t.dim()), 0, 1).expand_as(t)


def arranged(arrange: Any, rng: random.Random, tree: Any) -> Any:
    def one(t: Any) -> Any:
        plain = isinstance(t, torch.Tensor) and t.layout == torch.strided and t.dim() and t.numel()
        return arrange(t.detach(), rng) if plain else t

    return tree_map(one, tree)


def differing(op: Any, args: Any) -> str | None:
    """What the trace promises of a call beside what eager gives, where they differ; "" where they do not; None where
    eager or the trace refuses the call."""

    def fn(x: Any, rest: Any, kwargs: Any) -> Any:
        return op.op(x, *rest, **kwargs)

    try:
        results = tensors_of(fn(*args))
    except Exception:  # a layout that the operator does not take
        return None
    if any(t.layout != torch.strided or t.is_conj() or t.is_neg() for t in results):
        return None
    try:
        promised = trace(Program(fn, args)).output_types
    except _C.Declined:
        return None
    pairs = [(p, type_text(t)) for p, t in zip(promised, results, strict=True) if t.numel() > 1]
    return "".join(f"{p} for {t}" for p, t in pairs if p != t)


@pytest.mark.parametrize("group", range(GROUPS))
def test_promised_strides(group):
    rng, tried, wrong = random.Random(group), 0, []
    for op in op_samples.op_db[group::GROUPS]:
        if torch.float32 not in op.supported_dtypes("cpu") or op.name in RANDOM | set(DECLINES) | OPEN:
            continue
        try:
            samples = list(itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), SAMPLES))
        except Exception:  # a sample that this build of torch cannot make
            continue
        for s, arrange in itertools.product(samples, (permuted, spaced, channels_last, expanded)):
            said = differing(op, arranged(arrange, rng, (s.input, list(s.args), dict(s.kwargs))))
            tried += said is not None
            if said:
                wrong.append(f"{op.name} ({arrange.__name__}): {said}")
    assert not wrong
    assert tried > 1000


def gradients_differing(op: Any, args: Any, arrange: Any, rng: random.Random) -> str | None:
    """As differing, of the gradients of what is floating, for a gradient of the results in that layout."""
    leaves = [t for t in tensors_of(args) if t.is_floating_point()]

    def results() -> list[torch.Tensor]:
        x, rest, kwargs = args
        return [t for t in tensors_of(op.op(x, *rest, **kwargs)) if t.requires_grad]

    try:
        for t in leaves:
            t.requires_grad_()
        given = [arranged(arrange, rng, torch.randn(t.shape, dtype=t.dtype)) for t in results()]
    except Exception:
        return None

    def fn(*tensors: torch.Tensor) -> Any:
        outs = results()
        return torch.autograd.grad(outs, leaves, list(tensors[-len(outs) :]), allow_unused=True)

    try:
        eager = fn(*leaves, *given)
    except Exception:
        return None
    try:
        promised = trace(Program(fn, [*leaves, *given])).output_types
    except (_C.Declined, RuntimeError):
        return None
    real = [t for t in eager if t is not None]
    pairs = [(p, type_text(t)) for p, t in zip(promised, real, strict=True) if t.numel() > 1]
    return "".join(f"{p} for {t}" for p, t in pairs if p != t)


def plain(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    return t


@pytest.mark.parametrize("group", range(GROUPS))
def test_promised_strides_of_gradients(group):
    """A layout of the operands meets another one of the results' gradients."""
    rng, tried, wrong = random.Random(group), 0, []
    for op in op_samples.op_db[group::GROUPS]:
        if not op.supports_autograd or op.name in RANDOM | set(DECLINES) | OPEN | OPEN_GRADIENTS:
            continue
        try:
            samples = list(itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), 2))
        except Exception:
            continue
        for s, (one, other) in itertools.product(
            samples, ((permuted, plain), (plain, permuted), (channels_last, plain))
        ):
            said = gradients_differing(op, arranged(one, rng, (s.input, list(s.args), dict(s.kwargs))), other, rng)
            tried += said is not None
            if said:
                wrong.append(f"{op.name} ({one.__name__}, {other.__name__}): {said}")
    assert not wrong, "\n".join(wrong)
    assert tried > 100


@pytest.mark.parametrize("dynamic", [None, True])
def test_angles_of_complex_numbers_are_contiguous(dynamic):
    """Eager copies them out of a complex result; torch's shape function gives them the strides of the operand."""
    x = torch.randn(2, 3, 4, dtype=torch.complex64).permute(2, 0, 1)
    got = flashover.compile(torch.angle, dynamic=dynamic)(x)
    assert got.stride() == torch.angle(x).stride() == (6, 3, 1)
    assert torch.equal(got, torch.angle(x))
