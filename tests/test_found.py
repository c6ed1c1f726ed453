"""Programs that once came back wrong or were declined, each as small as it gets: compiled whole, equal to eager."""

from __future__ import annotations

import copy
import ctypes
import functools
import inspect
import io
import itertools
import math
import operator
import subprocess
import sys
import traceback
import types
import typing
import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import flashover

X = torch.linspace(-2, 2, 2 * 8 * 16).reshape(2, 8, 16)
IDS = (torch.arange(12) * 7 % 20).reshape(3, 4)
MASK = torch.tensor([True, False] * 8)


def check(f: Any, *args: Any, again: Any = None) -> None:
    """Whole capture, equal values, dtypes and strides; the second call runs the compiled code."""
    with torch.no_grad():
        fast = flashover.compile(f, fullgraph=True)
        for _ in range(2):
            torch.manual_seed(3)
            want = f(*args)
            torch.manual_seed(3)
            got = fast(*args)
            a, b = pytree.tree_leaves(got), pytree.tree_leaves(want)
            assert len(a) == len(b)
            for x, y in zip(a, b, strict=True):
                if not isinstance(y, torch.Tensor):
                    assert type(x) is type(y) and (x is y or x == y)
                    continue
                assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
                torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_output_that_an_extern_reads_too() -> None:
    """The output is dense in eager's order, the matrix product was promised the transposed one."""
    norm, linear = nn.LayerNorm(512), nn.Linear(512, 32)

    def f(x: torch.Tensor) -> Any:
        n = norm(x)
        return linear(n), n

    check(f, torch.randn(1, 512, 12).transpose(1, 2))


def test_row_chosen_by_data_beside_its_layer_norm() -> None:
    def f(x: torch.Tensor, ids: torch.Tensor) -> Any:
        h = F.layer_norm(x, (32,))
        return h, h[torch.arange(h.shape[0]), (ids == 2).int().argmax(-1)]

    check(f, torch.randn(1, 16, 32), torch.arange(16)[None] % 5)


def test_many_reshapes_of_a_mean() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.reshape(2, 2, 2, 2, 2, 2, 2, 4).permute(0, 3, 1, 5, 2, 4, 6, 7).reshape(2, 4, 4, 4, 4)
        return y.reshape(2, 2, 2, 2, 2, 4, 4).permute(0, 2, 1, 4, 3, 5, 6).mean(-1).reshape(-1)

    check(f, torch.randn(512))


def test_constants_joined_by_cat() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        at = torch.cat([torch.arange(4)[:, None], torch.arange(4)[:, None]], 1)
        return x[:4, :2] * at

    check(f, torch.randn(4, 4))


def test_kernels_shared_between_sizes() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        return [torch.cat([t[:, i:], t[:, :i]], 1) * 2 for t in (a, b) for i in (1, 3)]

    check(f, torch.randn(4, 8), torch.randn(6, 10))


encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).eval()
attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "one_hot": (lambda i: F.one_hot(i, 20), (IDS,)),
    "encoder fast path": (encoder, (X,)),
    "encoder with a mask": (lambda x: encoder(x, src_key_padding_mask=torch.zeros(2, 8, dtype=torch.bool)), (X,)),
    "attention fast path": (lambda x: attention(x, x, x), (X,)),
    "attention without weights": (lambda x: attention(x, x, x, need_weights=False), (X,)),
    "lstm": (nn.LSTM(16, 8, 2, bidirectional=True).eval(), (X,)),
    "gru": (nn.GRU(16, 8, batch_first=True).eval(), (X,)),
    "max_pool1d with indices": (lambda x: F.max_pool1d(x, 2, return_indices=True), (X,)),
    "embedding bag": (nn.EmbeddingBag(20, 8, mode="mean"), (IDS,)),
    "constant mask": (lambda x: x[:, :, torch.tensor([True, False] * 8)], (X,)),
    "constant mask made by operators": (lambda x: torch.combinations(x[0, 0]), (X,)),
    "stft": (
        lambda x: torch.stft(x, 16, window=torch.hann_window(16), return_complex=True).abs(),
        (X.reshape(2, 128),),
    ),
    "istft": (
        lambda x: torch.istft(
            torch.stft(x, 16, window=torch.hann_window(16), return_complex=True), 16, window=torch.hann_window(16)
        ),
        (X.reshape(2, 128),),
    ),
    "complex slices": (lambda x: torch.view_as_real(torch.fft.rfft(x)[:, 1:, ::2].transpose(0, 1) * 2), (X,)),
    "requires_grad_ that changes nothing": (lambda x: (x * 2).requires_grad_(False) + 1, (X,)),
    "batch norm in training": (lambda x: F.batch_norm(x, None, None, training=True), (X,)),
    "rrelu": (lambda x: F.rrelu(x), (X,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.timeout(120)
def test_program(name: str) -> None:
    f, args = PROGRAMS[name]
    check(f, *args)


def test_operator_that_writes_and_has_no_functional_twin() -> None:
    """The running statistics move as in eager."""
    fast, eager = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
    compiled = flashover.compile(fast, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(X), eager(X))
    torch.testing.assert_close(fast.running_mean, eager.running_mean)
    torch.testing.assert_close(fast.running_var, eager.running_var)
    assert fast.num_batches_tracked == eager.num_batches_tracked == 3


class Base:
    scale = 2
    last: Any = None


class Derived(Base):
    pass


def test_class_attributes_are_written() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        Base.last = x.shape
        Base.scale = 3
        return x * Derived.scale + Derived().scale

    fast = flashover.compile(f, fullgraph=True)
    with torch.no_grad():
        for x in (torch.ones(3), torch.ones(4), torch.ones(3)):
            Base.scale, Base.last = 2, None
            assert torch.equal(fast(x), x * 3 + 3)
            assert Base.last == x.shape and Base.scale == 3 and "scale" not in vars(Derived)
    Derived.scale = 5
    with torch.no_grad():
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 10.0))
    del Derived.scale


def test_mask_of_data_is_declined() -> None:
    with torch.no_grad(), pytest.raises(flashover.exc.Unsupported, match="mask"):
        flashover.compile(lambda x, m: x[:, :, m], fullgraph=True)(X, MASK)


class Pair(NamedTuple):
    left: torch.Tensor
    right: int = 2


class Wide(Pair):
    @property
    def product(self) -> torch.Tensor:
        return self.left * self.right


def test_named_tuples_as_arguments_and_results() -> None:
    def f(p: Wide, pairs: list[Pair]) -> Any:
        return p.product + p.left, p._replace(right=5), [a.left + b.left for a, b in itertools.pairwise(pairs)]

    check(f, Wide(X), [Pair(X + i) for i in range(3)])
    with torch.no_grad():
        assert type(flashover.compile(f)(Wide(X), [])[1]) is Wide


def test_an_input_is_written_while_others_share_memory() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        w.add_(1)
        return a @ b + w

    fast = flashover.compile(f, fullgraph=True)
    whole = torch.randn(4, 4)
    with torch.no_grad():
        for a, b in ((whole, whole.t()), (whole, whole.t()), (whole.clone(), whole.t()), (whole[:, :], whole.t())):
            w, v = torch.zeros(4), torch.zeros(4)
            torch.testing.assert_close(fast(a, b, w), f(a, b, v))
            assert torch.equal(v, w)
        lenient = flashover.compile(f)
        for _ in range(2):
            for shared in (False, True, False):  # what is written is shared too: that call runs eager
                x, y = torch.eye(4), torch.eye(4)
                w, v = (x[0], y[0]) if shared else (x[0].clone(), y[0].clone())
                torch.testing.assert_close(lenient(x, whole, w), f(y, whole, v))
                assert torch.equal(x, y)


def test_a_kernel_that_reads_data_is_a_break_and_no_error_of_the_program() -> None:
    def f(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        try:
            y = torch.zeros_like(x).index_reduce(0, index, x * 2, "mean", include_self=False)
        except RuntimeError:
            y = x * 0 - 1
        return y + torch.tensor([x[0, 0], x[1, 0]])

    x, index = torch.randn(4, 2), torch.tensor([0, 1, 1, 3])
    before = flashover.compile_stats()["graphs"]
    fast = flashover.compile(f)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x, index), f(x, index))
    assert flashover.compile_stats()["graphs"] > before


def test_torch_compiles_count_of_modules_is_not_guarded() -> None:
    """torch.compile notes on each module that is made how often it ran: LlamaForCausalLM recompiled without end."""
    code = """
import torch, torch._dynamo.mutation_guard as guard
import flashover
guard.install_generation_tagging_init()
def f(x):
    return x + len(torch.nn.Module()._parameters)
fast = flashover.compile(f, fullgraph=True)
fast(torch.ones(3))
for _ in range(4):
    guard.GenerationTracker.generation += 1
    assert torch.equal(fast(torch.ones(3)), torch.ones(3))
print(flashover.compile_stats()["frames"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "1", done.stdout + done.stderr


def test_powers_in_place() -> None:
    """pow_.Scalar had no twin (pow.Scalar is another thing): the power was lost."""

    def f(x: torch.Tensor, e: torch.Tensor) -> Any:
        a, b = x.abs() + 0.5, x.abs() + 0.5
        return a.pow_(3.0), b.pow_(e), x.abs().pow_(2)

    check(f, X[0], X[0].abs())


def test_copies_of_strided_views() -> None:
    """Cut from the memory of the original, not of the copy."""

    def f(x: torch.Tensor) -> Any:
        return torch.as_strided_copy(x + 1, (2, 2), (1, 2), 3), torch.unfold_copy(x.t() + 1, 0, 3, 2)

    check(f, X[0])


def test_parts_of_one_memory_in_place() -> None:
    """A part of a tensor written from another part: ATen's check compares addresses that a trace has not."""

    def f(x: torch.Tensor) -> Any:
        y = x * 2
        y[:2].add_(y[2:4])
        a, b = y[4:].reshape(-1).chunk(2)
        a.mul_(b).sigmoid_()
        x[:2].sub_(x[2:4])
        return y, x[0]

    flashover.reset()
    x, y = X[0].clone(), X[0].clone()
    for got, want in zip(flashover.compile(f, fullgraph=True)(x), f(y), strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_unpooling_keeps_the_format() -> None:
    x, index = F.max_pool2d(torch.randn(2, 3, 6, 8), 2, return_indices=True)
    for memory in (torch.contiguous_format, torch.channels_last):
        args = (x.contiguous(memory_format=memory), index.contiguous(memory_format=memory))
        check(lambda x, index: F.max_unpool2d(x, index, 2), *args)


VALUE_READING_GRADIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "max": lambda x: x.max() * 2,
    "min": lambda x: x.min().exp(),
    "median": lambda x: x.median() + x.nanmedian(),
    "cumprod": lambda x: x.cumprod(0).tanh(),
    "prod": lambda x: x.prod() + x.prod(0).sum(),
    "masked_fill": lambda x: x.masked_fill(x > 0.3, x.mean()),
    "norm": lambda x: torch.linalg.vector_norm(x, 4),
    "multi_margin": lambda x: F.multi_margin_loss(x, torch.tensor([1, 0, 2])),
    "multilabel_margin": lambda x: F.multilabel_margin_loss(x, torch.tensor([[1, 0, -1, 0]] * 3)),
    "index_reduce": lambda x: x.index_reduce(0, torch.tensor([0, 0, 2]), x.sin(), "mean"),
}


@pytest.mark.parametrize("name", VALUE_READING_GRADIENTS)
def test_gradients_whose_formulas_look_at_values(name: str) -> None:
    """Eager's derivative looks at values to take a shorter way; in a trace it takes the general one."""
    f = VALUE_READING_GRADIENTS[name]
    x = torch.tensor([[0.5, -0.25, 2.0, 0.0], [1.5, 2.0, -0.75, 0.25], [-1.0, 0.5, 0.0, 1.0]])
    flashover.reset()
    fast = flashover.compile(f, fullgraph=True, backend="eager")
    grads = []
    for call in (fast, f):
        leaf = x.clone().requires_grad_()
        grads.append(torch.autograd.grad(call(leaf).sum(), leaf)[0])
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("kind", ["SGD", "Adagrad"])
def test_fused_optimizers_that_have_no_shape_function(kind: str) -> None:
    parameters = [[torch.nn.Parameter(X[0].clone())] for _ in range(2)]
    steps = [getattr(torch.optim, kind)(p, lr=0.1, fused=True) for p in parameters]
    flashover.reset()
    calls = [steps[0].step, flashover.compile(steps[1].step, fullgraph=True)]
    for i in range(3):
        for p, call in zip(parameters, calls, strict=True):
            p[0].grad = (X[1] * (i + 1)).clone()
            call()
    torch.testing.assert_close(parameters[0][0], parameters[1][0])


def test_optimizers_after_torch_compile() -> None:
    """Its first use in a process disables _init_group and the fused steps: they were taken for the user's marks."""
    code = """
import torch, flashover
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
for kind, options in (("SGD", {}), ("Adam", {}), ("AdamW", {"fused": True}), ("RMSprop", {"foreach": False})):
    values = [torch.nn.Parameter(torch.ones(5)) for _ in range(2)]
    steps = [getattr(torch.optim, kind)([v], lr=0.1, **options).step for v in values]
    steps[1] = flashover.compile(steps[1], fullgraph=True)
    for i in range(3):
        for v, step in zip(values, steps):
            v.grad = torch.arange(5.0) + i
            step()
    torch.testing.assert_close(values[0], values[1])
results = []
for wrap in (lambda f: f, flashover.compile):
    value = torch.nn.Parameter(torch.ones(5))
    optimizer = torch.optim.LBFGS([value])
    def closure():
        optimizer.zero_grad()
        loss = ((value - 2) ** 2).sum()
        loss.backward()
        return loss
    step = wrap(optimizer.step)
    step(closure)
    results.append(value.detach())
torch.testing.assert_close(*results)
print("same")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert done.stdout.strip() == "same", done.stdout + done.stderr


def test_operators_of_the_program_without_a_derivative() -> None:
    """Eager differentiates the calls inside their kernels; a graph cannot: it said that there is no gradient."""
    library = torch.library.Library("flashover_found", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.define("double_(Tensor(a!) x) -> ()")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

    def double_(x: torch.Tensor) -> None:
        x.mul_(2)

    library.impl("double_", double_, "CPU")

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch.ops.flashover_found.double_(y)
        return torch.ops.flashover_found.twice(y) + y

    check(f, X[0])
    grads = []
    for call in (flashover.compile(f), f):
        x = X[0].clone().requires_grad_()
        grads.append(torch.autograd.grad(call(x).sum(), x)[0])
    torch.testing.assert_close(*grads)


def test_eigenvectors_lie_column_by_column() -> None:
    x = torch.tensor([[2.0, 1.0, 0.0], [0.5, -1.0, 1.0], [0.0, 0.25, 4.0]])
    check(lambda x: torch.linalg.eig(x), x)
    check(lambda x: torch.linalg.eig(x * 1j)[1], x)


@pytest.mark.parametrize("shape", [(), (4,), (3, 4)])
def test_multilabel_margins_without_a_batch(shape: tuple[int, ...]) -> None:
    """The shape function said one element where there is a number."""
    x, target = torch.randn(shape), torch.zeros(shape, dtype=torch.int64)
    for reduction in ("none", "mean"):
        check(lambda x, target: F.multilabel_margin_loss(x, target, reduction=reduction), x, target)  # noqa: B023


def test_methods_and_getters_made_by_pybind11() -> None:
    """They are wrapped in an instancemethod: a call of one ended the graph."""
    make = ctypes.pythonapi.PyInstanceMethod_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.py_object]
    root, double = make(math.sqrt), make(lambda x: x * 2)

    class Holder:
        size = property(make(lambda self: self.value * 3))

        def __init__(self, value: float) -> None:
            self.value = value

        quarter = make(lambda self: self.value / 4)

    holder = Holder(2.0)
    check(lambda x: double(x) * root(4.0) + holder.size + holder.quarter(), X[0])
    fast = flashover.compile(lambda x: x + holder.size, fullgraph=True)
    for holder.value in (2.0, 5.0):
        torch.testing.assert_close(fast(X[0]), X[0] + 3 * holder.value)


def test_questions_about_devices() -> None:
    def ask(x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_available() and torch.cuda.is_bf16_supported():
            return x.bfloat16().float() * torch.cuda.get_device_properties(0).multi_processor_count
        return x + torch.cuda.device_count() + len(torch.cuda.get_arch_list()) + torch.accelerator.device_count()

    check(ask, X[0])


def test_a_capture_leaves_torchs_precisions_alone():
    def precisions() -> list[str]:
        pairs = [(b, op) for b in ("mkldnn", "cuda") for op in ("matmul", "conv")]
        return [torch._C._get_fp32_precision_getter(*p) for p in pairs]

    before = precisions()
    try:
        torch._C._set_fp32_precision_setter("mkldnn", "matmul", "none")
        none = precisions()
        flashover.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        assert precisions() == none
    finally:
        torch._C._set_fp32_precision_setter("mkldnn", "matmul", before[0])


def test_gradients_of_a_median_of_nothing() -> None:
    x = torch.randn(8, 0, 33, requires_grad=True)
    fast = flashover.compile(lambda x: x.median(2)[0] * 2, fullgraph=True)
    fast(x).sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape and flashover.compile_stats()["graphs"] > 0


def look_at_the_stack(x):
    return x + len(inspect.stack()[1].function)


def look_at_the_traceback(x):
    return x + len(traceback.extract_stack()[-2].name)


@pytest.mark.parametrize("program", [look_at_the_stack, look_at_the_traceback])
def test_who_called_is_not_remembered(program):
    compiled = flashover.compile(program, backend="eager")

    def one(f):
        return f(torch.zeros(1))

    def another(f):
        return f(torch.zeros(1))

    for caller in (one, another, one):
        assert torch.equal(caller(compiled), caller(program))


def warns_here(x):
    warnings.warn(f"of {tuple(x.shape)}", DeprecationWarning, stacklevel=1)
    return x + 1


def warns_at_the_caller(x):
    def inner():
        warnings.warn("hello", stacklevel=3)

    inner()
    return x + 1


def warns_between_breaks(x):
    warnings.warn("one", stacklevel=1)
    flashover.graph_break()
    warnings.warn("two")  # noqa: B028
    return x + 1


def warns_nobody(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hello", stacklevel=1)
    return x + 1


def prints_a_traceback(x):
    try:
        raise ValueError("q")
    except ValueError:
        traceback.print_exc(file=sys.stdout)
    return x + 1


@pytest.mark.parametrize("action", ["always", "ignore", "error"])
@pytest.mark.parametrize(
    "program", [warns_here, warns_at_the_caller, warns_between_breaks, warns_nobody, prints_a_traceback]
)
def test_each_call_says_what_it_says(program, action, capsys):
    """Warnings and printed tracebacks: at each call, with the program's lines, under the filters of then."""
    said = []
    for f in (program, flashover.compile(program, backend="eager")):
        for filters in ("always", action, "always"):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter(filters)
                before = list(warnings.filters)
                try:
                    result = f(torch.ones(2)).tolist()
                except Warning as e:
                    result = repr(e)
                assert warnings.filters == before
            warned = [(str(w.message), w.category, w.lineno, w.filename) for w in seen]
            said.append((result, warned, capsys.readouterr()))
    assert said[3:] == said[:3]


def test_classes_made_in_c_are_not_called_while_tracing():
    """PyTorchFileWriter wrote into the program's buffer: its class looked like one of Python's."""

    def save(x):
        buffer = io.BytesIO()
        torch.save(x, buffer)
        return buffer.getvalue()

    assert len(flashover.compile(save, backend="eager")(torch.ones(3))) == len(save(torch.ones(3)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.pad(x, (1, 1, 2, 0), mode="reflect"),
        lambda x: F.pad(x, (1, 1, 2, 0), mode="replicate"),
        lambda x: F.channel_shuffle(x, 2),
    ],
)
def test_formats_that_the_cpu_keeps(function) -> None:
    a = torch.randn(4, 6, 9, 10)
    fast = flashover.compile(function, fullgraph=True)
    for x in (a.contiguous(memory_format=torch.channels_last), a, a.permute(0, 3, 1, 2), a[:, :, :, ::2]):
        got, want = fast(x), function(x)
        assert got.stride() == want.stride() and torch.equal(got, want)


def test_windows_over_what_does_not_lie_together() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.unfold(0, 2, 2).mul_(2)
        return x.unfold(1, 3, 2) + 1, x.unfold(0, 2, 1).sum(-1), y + 1

    fast = flashover.compile(function, fullgraph=True)
    x, y = torch.randn(6, 40)[1:, ::3], torch.randn(6, 40)[:, 1::2]
    mine, theirs = (torch.empty(6, 40)[:, 1::2].copy_(y) for _ in range(2))
    for got, want in zip(fast(x, mine), function(x, theirs), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
    assert torch.equal(mine, theirs)


def number_is_checked(x, log):
    log.append("begins")
    limit = 50
    if not x.max().item() <= limit:
        raise AssertionError("too large")
    if float(x.min()) < -7.25:
        raise ValueError("too small")
    if not x.isfinite().all().item():
        raise AssertionError
    torch._check_tensor_all(x != 3, lambda: "three")
    log.append("ends")
    return x + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8])
def test_checks_of_numbers_are_part_of_the_graph(dtype):
    compiled = flashover.compile(number_is_checked, fullgraph=True)
    good = [[1, 2], [50, 4]]
    for values in (good, [[1, 51], [2, 4]], [[1, -8], [2, 2]], [[1, 3], [2, 4]], [[float("nan"), 1], [1, 1]], good):
        if min(v for row in values for v in row) < 0 and dtype == torch.uint8:
            continue
        if not dtype.is_floating_point and any(v != v for row in values for v in row):
            continue
        outcomes = []
        for f in (number_is_checked, compiled):
            log: list[str] = []
            try:
                outcomes.append((f(torch.tensor(values, dtype=dtype), log).tolist(), log))
            except Exception as e:
                outcomes.append((repr(e), log))
        assert outcomes[0] == outcomes[1]


def test_windows_over_nothing() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.unfold(2, 2, 1) + 1, x.as_strided((3, 0), (1, 1)) * 2, x.abs().unfold(0, 3, 2)

    check(function, torch.randn(17, 0, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_signs_of_zeros(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both = torch.stack([x, -x], 1)
        return x.clamp(0, 1), x.clamp(max=0), F.relu6(x), both.amax(1), both.amin(1), x / 3, x.cummax(0)[0]

    x = torch.tensor([-0.0, 0.0, -0.5, 0.5, 2.0] * 9, dtype=dtype)
    for ours, theirs in zip(flashover.compile(program)(x), program(x), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert torch.equal(ours.signbit(), theirs.signbit())


def test_hardswish_at_its_corners() -> None:
    def gradient(f) -> torch.Tensor:
        x = torch.tensor([-3.0, 3.0, -2.5, 2.5, -4.0, 4.0], requires_grad=True)
        f(x).sum().backward()
        return x.grad

    torch.testing.assert_close(gradient(flashover.compile(F.hardswish)), gradient(F.hardswish))


def gradients_of(f, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    out = f(x)
    (out * torch.arange(1.0, out.numel() + 1).view(out.shape)).sum().backward()
    return x.grad


@pytest.mark.parametrize("backend", ["eager", "flashover"])
def test_gradients_of_a_written_view_behind_another_part(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        t = x * 3
        t.diagonal().add_(1)
        return torch.cat([x.flatten(), t.flatten()])

    x = torch.randn(4, 3, 2)
    compiled = flashover.compile(program, backend=backend)
    torch.testing.assert_close(gradients_of(compiled, x), gradients_of(program, x))


def test_as_strided_of_a_view_reaches_no_further_than_eager() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.unbind(1)[0].as_strided((2, 2), (1, 1))

    x = torch.randn(4, 16)
    torch.testing.assert_close(gradients_of(flashover.compile(program), x), gradients_of(program, x))


def return_the_function(module: torch.fx.GraphModule, examples: list[torch.Tensor]):
    return module.forward


@pytest.mark.parametrize("backend", ["eager", "flashover", return_the_function])
def test_results_of_a_graph_are_views_of_nothing_unseen(backend) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        t = torch.stack([x, x], -1).flatten(-2)
        flashover.graph_break()
        t.add_(1)  # a view of a leaf, autograd said
        return t * 2

    x = torch.randn(4, 3)
    torch.testing.assert_close(gradients_of(flashover.compile(program, backend=backend), x), gradients_of(program, x))


def test_strides_of_dimensions_of_size_one() -> None:
    net = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(32, 8, 3, padding=1, bias=False))
    x = torch.randn(2, 32, 2, 2).to(memory_format=torch.channels_last)
    assert flashover.compile(net)(x).stride() == net(x).stride()


class StridedBiases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(64, 32)), nn.Parameter(torch.randn(128))
        self.kernel = nn.Parameter(torch.randn(64, 32, 3, 3))

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> list[torch.Tensor]:
        every, one = self.bias[::2], self.bias[:1].expand(64)
        out = [F.linear(x, self.weight, b) for b in (every, one)]
        out += [F.relu(F.conv2d(image, self.kernel, b)) for b in (every, one)]
        return [*out, F.conv2d(image, self.kernel[..., :1, :1], every)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_biases_that_do_not_lie_side_by_side(dtype: torch.dtype) -> None:
    # oneDNN's operators read such a bias as if it were dense.
    net, x, image = StridedBiases().to(dtype), torch.randn(256, 32, dtype=dtype), torch.randn(1, 32, 9, 9, dtype=dtype)
    with torch.no_grad():
        torch.testing.assert_close(flashover.compile(net)(x, image), net(x, image), atol=0.1, rtol=0.02)


def test_a_known_matrix_times_a_transposed_gradient() -> None:
    # The first step's hidden state is known to be zeros: packed, and multiplied with the transposed gradient.
    net, x = nn.GRU(128, 128, batch_first=True), torch.randn(16, 4, 128)

    def step(call: object) -> list[torch.Tensor]:
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out, hidden = call(x)
        (out.float().square().sum() + hidden.float().sum()).backward()
        return [p.grad.clone() for p in net.parameters()]

    torch.testing.assert_close(step(flashover.compile(net)), step(net), atol=0.5, rtol=0.05)


def both_ways(program, *calls, fullgraph: bool = False) -> None:
    """Each call's result, compiled and not."""
    compiled = flashover.compile(program, backend="eager", fullgraph=fullgraph)
    for arguments in calls:
        assert compiled(*copy.deepcopy(arguments)) == program(*copy.deepcopy(arguments))


def test_items_that_a_slice_is_set_to() -> None:
    def program(new: list) -> list:
        items = [7, 8]
        items[1:] = new
        return items

    both_ways(program, ([1, 2],), ([3, 4],), ([5],), fullgraph=True)


def test_warnings_that_the_program_records_behind_a_break() -> None:
    def program() -> list[str]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            flashover.graph_break()
            warnings.warn("now", stacklevel=1)
        return [str(w.message) for w in said]

    both_ways(program, (), ())


def test_filters_set_before_a_warning() -> None:
    def program() -> int:
        warnings.simplefilter("ignore")
        warnings.warn("not said", stacklevel=1)
        return 1

    for call in (program, flashover.compile(program, backend="eager")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert call() == 1


def test_a_module_found_by_the_import_system_is_written() -> None:
    module = types.ModuleType("flashover_test_patched")
    module.value = 1
    sys.modules[module.__name__] = module

    def program() -> int:
        with mock.patch("flashover_test_patched.value", 5):
            flashover.graph_break()
            return module.value

    try:
        both_ways(program, ())
        assert module.value == 1
    finally:
        del sys.modules[module.__name__]


def test_functions_with_globals_of_the_calls_own() -> None:
    def program() -> int:
        names = {"a": 0}
        function = types.FunctionType(compile("global a\na = 1", "x", "exec"), names)
        flashover.graph_break()
        function()
        return names["a"]

    both_ways(program, (), ())


def test_exceptions_raised_in_except_star() -> None:
    def program() -> str:
        flashover.graph_break()
        try:
            try:
                raise ExceptionGroup("g", [TypeError(1), KeyError(2), ExceptionGroup("h", [KeyError(3), OSError(4)])])
            except* TypeError:
                raise RuntimeError("new") from None
            except* KeyError:
                raise
        except Exception as e:
            return repr(e)

    def whole() -> str:
        try:
            try:
                raise ExceptionGroup("g", [TypeError(1), KeyError(2)])
            except* TypeError:
                raise RuntimeError("new") from None
        except Exception as e:
            return repr(e)

    both_ways(program, (), ())
    both_ways(whole, (), (), fullgraph=True)


def test_names_of_arguments_at_a_call_whose_arguments_end_the_capture() -> None:
    def program(depth: int) -> int:
        if depth:
            return program(depth - 1)
        return len(traceback.StackSummary.extract(traceback.walk_stack(None), limit=3))

    both_ways(program, (5,), (5,))


def test_callables_handed_through_c() -> None:
    def program() -> tuple:
        part = functools.partial(print, 1)
        texts = repr(part), next(iter(itertools.repeat(part, 1))) is part
        counted = itertools.accumulate([None, None, None], operator.is_)
        next(counted)
        flashover.graph_break()
        return texts, list(copy.copy(counted)), max([], default=print) is print

    both_ways(program, (), ())


def test_whose_attribute_was_missing() -> None:
    class Empty:
        def __getattr__(self, name: str) -> object:
            raise AttributeError

    empty = Empty()

    def program() -> tuple:
        try:
            empty.missing  # noqa: B018
        except AttributeError as e:
            return e.name, e.obj is empty, e.args

    both_ways(program, (), fullgraph=True)


def test_iterators_of_sets_at_a_break() -> None:
    def program() -> tuple:
        items = iter({5, 6, 7})
        next(items)
        flashover.graph_break()
        return type(items).__name__, operator.length_hint(items), list(items)

    both_ways(program, ())


def test_super_of_a_class_whose_order_is_being_made() -> None:
    def program() -> list:
        seen = []

        class Meta(type):
            def mro(cls):
                if cls.__mro__ is None:
                    try:
                        super(cls, cls).missing  # noqa: B018
                    except AttributeError:
                        seen.append("none")
                return type.mro(cls)

        class Made(metaclass=Meta):
            pass

        return seen

    both_ways(program, ())


def test_references_kept_by_the_program() -> None:
    kept: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    class Key:
        pass

    key = Key()

    def program() -> int:
        kept[key] = 3
        return kept[key]

    both_ways(program, (), fullgraph=True)
    assert list(kept.items()) == [(key, 3)]


def test_types_of_typing_stay_one_object() -> None:
    def program() -> tuple:
        items, maybe = list[int], typing.Optional[int]  # noqa: UP045
        of_any = typing.AbstractSet[Any]
        flashover.graph_break()
        same = of_any is typing.AbstractSet[Any], maybe is typing.Optional[int]  # noqa: UP045
        return same, maybe.__origin__ is typing.Union, items == list[int]

    both_ways(program, (), ())


def test_what_the_standard_library_prints(capsys) -> None:
    compiled = flashover.compile(lambda: typing.reveal_type("text"), backend="eager")
    for _ in range(2):
        assert compiled() == "text"
        assert capsys.readouterr().err == "Runtime type is 'str'\n"
