"""Eager raises for dtypes that an operator has no kernel for; compiled programs do, too, though their kernels could."""

import copy
import itertools
from typing import Any

import op_samples
import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

import flashover

DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32)
# Eager has the kernel for other devices or ranks, and its lack here is no rule: the compiled result is right.
LACKING = {
    ("nn.functional.avg_pool3d", torch.float16): "CUDA has it",
    ("nn.functional.max_pool1d", torch.uint8): "two dimensions have it",
    ("nn.functional.max_pool1d", torch.int64): "two dimensions have it",
}
GROUPS = 8


def calls(op: Any) -> list[tuple[torch.dtype, Any]]:
    """Arguments of the operator in each dtype that it does not list, from its first sample."""
    supported = op.supported_dtypes("cpu")
    base = next((d for d in (torch.float32, torch.int64) if d in supported), None)
    if base is None:
        return []
    found = []
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", base, requires_grad=False), 2))
    except Exception:  # a sample that this build of torch cannot make
        return []
    for dtype in DTYPES:
        for s in samples if dtype not in supported else []:
            cast = lambda t, d=dtype: t.to(d) if isinstance(t, torch.Tensor) and t.dtype == base else t  # noqa: E731
            found.append((dtype, tree_map(cast, (s.input, list(s.args), dict(s.kwargs)))))
    return found


def refused(f: Any, args: Any) -> type[Exception] | None:
    """The class of the exception that eager raises."""
    try:
        f(*copy.deepcopy(args))
    except NotImplementedError as e:  # a sparse layout that cannot be copied says the same, of the storage
        return None if "storage" in str(e) else type(e)
    except Exception as e:
        return type(e)
    return None


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_eager_refuses_is_refused(group):
    tried, passed = 0, []
    for op in op_samples.op_db[group::GROUPS]:
        for dtype, args in calls(op):

            def f(x, rest, kwargs, op=op):
                return op.op(x, *rest, **kwargs)

            refusal = refused(f, args)
            if refusal is None or (op.name, dtype) in LACKING:
                continue
            tried += 1
            flashover.reset()
            try:
                flashover.compile(f)(*args)
                passed.append(f"{op.name} {dtype}")
            except refusal:
                pass
            except Exception as e:
                passed.append(f"{op.name} {dtype}: {type(e).__name__} for {refusal.__name__}: {e}"[:200])
    assert not passed
    assert tried > 100


@pytest.mark.parametrize(
    ("f", "sizes"),
    [
        (lambda x: x.flip(1), ()),
        (lambda x: x.flip(5), (2, 2)),
        (lambda x: x.roll(1, 0), ()),
        (lambda x: x.roll(1, 5), (2,)),
        (lambda x: x.roll((1, 2), 0), (2,)),
        (lambda x: x.roll((1, 2)), (2,)),
    ],
)
@pytest.mark.parametrize("backend", ["flashover", "aot_eager"])
def test_dimensions_that_there_are_not(f, sizes, backend):
    x = torch.ones(sizes)
    refusal = refused(f, (x,))
    assert refusal is not None
    with pytest.raises(refusal):
        flashover.compile(f, backend=backend, dynamic=True)(x)
    by_size = flashover.compile(lambda x, y: x.roll(y.shape[0], 0), backend=backend, dynamic=True)
    with pytest.raises(IndexError):
        by_size(torch.ones(()), torch.ones(2))
    y = torch.arange(6.0).view(2, 3)
    assert torch.equal(by_size(y, torch.ones(3)), y.roll(3, 0))


X, I = torch.linspace(-1, 1, 24).reshape(2, 4, 3), torch.tensor([0, 1])
OPERANDS = {
    "an index that is no integer": lambda x: torch.index_select(x, 0, I.float()),
    "an embedding of floats": lambda x: F.embedding(I.double(), x[0]),
    "a loss with weights of another type": lambda x: F.nll_loss(
        x[0].double(), torch.tensor([0, 1, 2, 0]), torch.ones(3)
    ),
    "huber_loss of integers": lambda x: F.huber_loss(x.long(), x),
    "layer_norm of another type": lambda x: F.layer_norm(x.double(), (3,), torch.ones(3), torch.zeros(3)),
    "group_norm of another type": lambda x: F.group_norm(x, 2, torch.ones(4).double()),
    "batch_norm of another type": lambda x: F.batch_norm(x, torch.zeros(4).double(), torch.ones(4).double()),
    "batch_norm by a matrix": lambda x: F.batch_norm(x, torch.zeros(1, 4), torch.ones(4), training=True),
    "channels that do not divide": lambda x: F.channel_shuffle(x, 3),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_operands_that_eager_refuses(name):
    f = OPERANDS[name]
    with pytest.raises(Exception) as want:
        f(X)
    with pytest.raises(type(want.value)) as got:
        flashover.compile(f, fullgraph=True)(X)
    assert not isinstance(got.value, flashover.exc.BackendCompilerFailed), got.value
