"""Programs that launch Triton kernels of their own: name -> (function of the device's tensors, how to make these).

`python kernel_programs.py` runs all on the CPU (TRITON_INTERPRET=1) and prints one JSON object: name -> what is wrong,
or null. On a GPU tests/gpu runs the same."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

import flashover

# ---- kernels


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside), mask=inside)


@triton.jit
def scale_kernel(x_ptr, factor, n, BLOCK: tl.constexpr = 64):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


@triton.jit
def rows_kernel(x_ptr, out_ptr, rows, columns, x_row, x_column, out_row, out_column, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = (at < columns) & (row < rows)
    values = tl.load(x_ptr + row * x_row + at * x_column, mask=inside)
    tl.store(out_ptr + row * out_row + at * out_column, values * 2, mask=inside)


@triton.jit
def maybe_bias_kernel(x_ptr, bias_ptr, out_ptr, n, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x_ptr + at, mask=at < n)
    if HAS_BIAS:
        values += tl.load(bias_ptr + at, mask=at < n)
    tl.store(out_ptr + at, values, mask=at < n)


@triton.jit
def double_blocks_kernel(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Of descriptors that the host makes."""
    at = [tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS]
    out.store(at, x.load(at) * 2)


@triton.jit
def sum_blocks_kernel(x, y, out, BLOCK: tl.constexpr):
    at = [tl.program_id(0) * BLOCK]
    out.store(at, x.load(at) + y.load(at))


@triton.jit
def two_results_kernel(x_ptr, sum_ptr, difference_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    y = tl.load(y_ptr + at, mask=at < n)
    tl.store(sum_ptr + at, x + y, mask=at < n)
    tl.store(difference_ptr + at, x - y, mask=at < n)


@triton.jit
def count_kernel(x_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts_ptr + tl.load(x_ptr + at, mask=at < n), 1, mask=at < n)


INTERPRETED = triton.knobs.runtime.interpret


def tune(*configs: triton.Config) -> Callable[[Any], Any]:
    """The interpreter has nothing to measure with."""

    def measure(call: Callable[[], Any], quantiles: Any) -> list[float]:
        call()
        return [1.0, 1.0, 1.0]

    return triton.autotune(configs=list(configs), key=["n"], do_bench=measure if INTERPRETED else None)


@tune(triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 128}, num_warps=8))
@triton.jit
def tuned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + 3, mask=at < n)


@triton.heuristics({"BLOCK": lambda args: 64 if args["n"] > 64 else 16, "EVEN": lambda args: args["n"] % 64 == 0})
@triton.jit
def guessed_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out_ptr + at, tl.load(x_ptr + at) - 1)
    else:
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) - 1, mask=at < n)


@tune(triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64}))
@triton.heuristics({"TWICE": lambda args: args["BLOCK"] * 2})
@triton.jit
def tuned_and_guessed_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, TWICE: tl.constexpr):
    at = tl.program_id(0) * TWICE + tl.arange(0, TWICE)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 5, mask=at < n)


# ---- functions that launch them


def add(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = out.numel()
    add_kernel[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
    return out


def scale_(x: Tensor, factor: float) -> Tensor:
    scale_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, factor, x.numel())
    return x


def double_rows(x: Tensor, out: Tensor) -> Tensor:
    rows, columns = x.shape
    rows_kernel[(rows,)](x, out, rows, columns, *x.stride(), *out.stride(), BLOCK=64)
    return out


def double_blocks(x: Tensor, out: Tensor) -> None:
    given, made = (TensorDescriptor.from_tensor(t, [16, 32]) for t in (x, out))
    grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(x.shape[1], 32))
    double_blocks_kernel[grid](given, made, ROWS=16, COLUMNS=32)


def sum_blocks(x: Tensor, out: Tensor) -> Tensor:
    given = TensorDescriptor(x, [x.numel()], [1], [64])
    blocks = triton.cdiv(x.numel(), 64)
    sum_blocks_kernel[(blocks,)](given, given, TensorDescriptor(out, [x.numel()], [1], [64]), BLOCK=64)
    return out


def tuned(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    tuned_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
    return out


class Negate(torch.autograd.Function):
    """Its forward and backward are kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return scale_(x.clone(), -1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return add(scale_(grad.clone(), -1.0), x * 0)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.zero_()
        add_kernel[(1,)](self.calls, torch.ones_like(self.calls), self.calls, 8, 16)
        return Negate.apply(self.linear(x)).square().sum(), self.calls * 1


# ---- programs

PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {}


def program(*makers: Callable[[], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def put(f: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[f.__name__.replace("_", " ")] = (f, lambda: [m() for m in makers])
        return f

    return put


def random(*sizes: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*sizes)


@program(random(100), random(100))
def fresh_result(x, y):
    return add(x * 2, y) + 1


@program(random(100))
def input_is_written(x):
    scale_(x, 3.0)
    return x + 1


@program(random(100))
def intermediate_is_written(x):
    y = x + 1
    z = y.view(10, 10)
    scale_(y, 0.5)
    return z * 2, y


@program(random(100), random(100))
def kernel_after_kernel(x, y):
    a = add(x, y)
    b = add(a, x)
    scale_(a, 2.0)
    c = add(a, b)
    scale_(b, 2.0)
    return a, b, c


@program(random(100))
def operand_is_result(x):
    y = x + 1
    add_kernel[(2,)](y, y, y, 100, BLOCK=64)
    return y


@program(random(30, 40))
def transposed_views(x):
    y = (x * 2).t()
    return double_rows(y, torch.empty_like(x).t()), double_rows(x, torch.zeros(40, 30, device=x.device).t())


@program(random(30, 40))
def view_is_written(x):
    y = x + 0
    double_rows(x[:25, 3:13], y[5:, 20:30])
    scale_kernel[(1,)](y[2], 10.0, 40)
    return y, y.sum()


@program(random(30, 40))
def view_of_an_input_is_written(x):
    double_rows(x[:10, :20], x[20:, 20:])
    return x.sum(0)


@program(random(64))
def views_of_one_memory(x):
    y = x + 1
    add_kernel[(1,)](y[:16], y[16:32], y[32:48], 16, BLOCK=16)
    first, second = y.chunk(2)
    two_results_kernel[(1,)](first, first, second, second, 32, BLOCK=32)
    return y


@program(random(64))
def views_in_inference_mode(x):
    with torch.inference_mode():
        y = x + 1
        first, second = y.chunk(2)
        two_results_kernel[(1,)](first, first, second, second, 32, BLOCK=32)
        return y * 1


@program(random(8, 16))
def beyond_the_view(x):
    y = torch.zeros_like(x)
    add_kernel[(2,)](x[0], x[0], y[0], 128, BLOCK=64)
    return y


@program(random(50), random(50))
def no_pointer(x, y):
    out, biased = torch.empty_like(x), torch.empty_like(x)
    maybe_bias_kernel[(1,)](x, None, out, 50, False, 64)
    maybe_bias_kernel[(1,)](x, y, biased, 50, True, 64)
    return out, biased


@program(random(50), random(50))
def two_results(x, y):
    sums, differences = torch.empty_like(x), torch.empty_like(x)
    two_results_kernel[(1,)](x, sums, differences, y, 50, BLOCK=64)
    return sums * differences


@program(lambda: torch.randint(0, 5, (200,)))
def atomics(x):
    counts = torch.zeros(5, dtype=torch.int32, device=x.device)
    count_kernel[(4,)](x, counts, 200, BLOCK=64)
    return counts


@program(random(100))
def autotuned(x):
    return tuned(x + 1) * 2


@program(random(100))
def heuristics(x):
    out = torch.empty_like(x)
    guessed_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out


@program(random(100))
def autotuned_heuristics(x):
    out = torch.empty_like(x)
    tuned_and_guessed_kernel[lambda meta: (triton.cdiv(100, meta["TWICE"]),)](x, out, 100)
    return out


@program(random(100))
def nothing_reads_it(x):
    scale_(x + 1, 2.0)
    return x * 2


@program(random(256, 96))
def descriptors(x):
    out = torch.empty_like(x)
    double_blocks(x * 2, out)
    return out + 1


@program(random(64, 64))
def descriptor_of_a_view_that_is_written(x):
    y = x + 1
    double_blocks(y[16:, 32:], y[:48, :32])
    return y


@program(random(256))
def one_descriptor_twice(x):
    out = torch.empty_like(x)
    sum_blocks(x * 2, out)
    return out


@program(random(100))
def options_of_a_launch(x):
    out = torch.empty_like(x)
    add_kernel[(1, 1)](x, x, out_ptr=out, n=100, BLOCK=128, num_warps=2, num_stages=1)
    return out


PROGRAMS["module that trains"] = (Block(), lambda: [torch.randn(4, 8, requires_grad=True)])


@program(lambda: torch.randn(4, 8, requires_grad=True))
def trained_function(x):
    return Negate.apply(x * 2).square().sum()


@program(lambda: torch.randn(100, requires_grad=True))
def no_gradient_through_a_kernel(x):
    y = x * 2
    out = torch.empty_like(y)
    add_kernel[(2,)](y, y, out, 100, BLOCK=64)
    return (y * out).sum()


@torch.library.triton_op("flashover_test::add_by_kernel", mutates_args={})
def add_by_kernel(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), 64)
    return out


if not INTERPRETED:  # torch's wrapper knows no interpreted kernels

    @program(random(100), random(100))
    def operator_of_kernels(x, y):
        return add_by_kernel(x * 2, y) + 1

    @program(random(100), random(100))
    def wrapped_kernel(x, y):
        out = torch.empty_like(x)
        torch.library.wrap_triton(add_kernel)[(2,)](x, y, out, 100, 64)
        return out


# ---- comparing


def leaves(result: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(result)


def outcome(f: Callable[..., Any], args: list[Any]) -> list[Any]:
    """What comes of a call: results, gradients, contents and versions of what was given."""
    result = f(*args)
    trained = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    parts = leaves(result)
    grads = torch.autograd.grad(parts[0], trained) if trained else ()
    return [*parts, *grads, *args, *[a._version for a in args if isinstance(a, Tensor)]]


def difference(got: list[Any], wanted: list[Any]) -> str | None:
    if len(got) != len(wanted):
        return f"{len(got)} results, not {len(wanted)}"
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if isinstance(a, Tensor):
            if (
                a.dtype != b.dtype
                or a.shape != b.shape
                or a.stride() != b.stride()
                or a.requires_grad != b.requires_grad
            ):
                return f"result {i} is another kind of tensor"
            if not torch.allclose(a, b, rtol=1e-5, atol=1e-5):
                return f"result {i} differs by {(a - b).abs().max()}"
        elif a != b:
            return f"result {i} is {a}, not {b}"
    return None


def wrong(name: str, device: str = "cpu", options: dict[str, Any] | None = None) -> str | None:
    """What is wrong with a program compiled as one graph, in its first and its second call."""
    function, make = PROGRAMS[name]
    if isinstance(function, torch.nn.Module):
        function = function.to(device)
    compiled = flashover.compile(function, fullgraph=True, options=options or {})
    for call in range(2):
        torch.manual_seed(call)
        args = [a.to(device).detach().requires_grad_(a.requires_grad) for a in make()]
        copies = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        said = difference(outcome(compiled, args), outcome(function, copies))
        if said is not None:
            return f"call {call}: {said}"
    return None


# ---- guards, sizes, words

CHECKS: dict[str, Callable[[], None]] = {}


def check(f: Callable[[], None]) -> Callable[[], None]:
    CHECKS[f.__name__.replace("_", " ")] = f
    return f


def agrees(compiled: Any, function: Callable[..., Any], *args: Any) -> None:
    said = difference(leaves(compiled(*args)), leaves(function(*args)))
    assert said is None, said


def views(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 0
    double_rows(x[: x.shape[0] - 5, 3:13], y[5:, 20:30])
    return y, y.sum()


@check
def sizes_share_a_version() -> None:
    for function, sizes in ((lambda x: add(x * 2, x) + 1, ()), (tuned, ()), (views, (40,))):
        compiled = flashover.compile(function, fullgraph=True, dynamic=True)
        for n in (100, 120, 64, 1000):
            agrees(compiled, function, torch.randn(n, *sizes))
        assert len(compiled.versions) == 1, compiled.explain().recompiles


@check
def descriptors_of_all_sizes_share_a_version() -> None:
    def function(x: Tensor) -> Tensor:
        return sum_blocks(x * 2, torch.empty_like(x)) + 1

    compiled = flashover.compile(function, fullgraph=True, dynamic=True)
    for n in (100, 128, 7, 1000):
        agrees(compiled, function, torch.randn(n))
    assert len(compiled.versions) == 1, compiled.explain().recompiles


@check
def descriptors_that_do_not_fit_are_errors_as_in_eager() -> None:
    def function(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        double_blocks(x, out)
        return out

    for x in (torch.randn(16, 33), torch.randn(32, 16).t(), torch.randn(129)[1:].view(4, 32)):
        for f in (function, flashover.compile(function)):
            try:
                f(x)
            except AssertionError:
                continue
            raise RuntimeError(f"no error for {x.shape}, {x.stride()}")


@check
def another_kernel_is_another_version() -> None:
    def function(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        launched[0][(1,)](x, x, out, 10, BLOCK=16)
        return out

    @triton.jit
    def twice(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * tl.load(y_ptr + at, mask=at < n), mask=at < n)

    launched = [add_kernel]
    compiled = flashover.compile(function, fullgraph=True)
    for kernel in (add_kernel, twice, add_kernel):
        launched[0] = kernel
        agrees(compiled, function, torch.randn(10))
    assert len(compiled.versions) == 2


@check
def constants_are_guarded() -> None:
    def function(x: Tensor, bias: bool, block: int) -> Tensor:
        out = torch.empty_like(x)
        maybe_bias_kernel[lambda meta: (triton.cdiv(50, meta["BLOCK"]),)](x, x, out, 50, bias, block)
        return out

    compiled = flashover.compile(function, fullgraph=True)
    for bias in (True, False):
        for block in (16, 64):
            agrees(compiled, function, torch.randn(50), bias, block)


@check
def numbers_are_guarded() -> None:
    compiled = flashover.compile(lambda x, factor: scale_(x + 1, factor), fullgraph=True)
    for factor in (0.5, 0.25, 3.0):
        agrees(compiled, lambda x, factor: scale_(x + 1, factor), torch.randn(50), factor)


@check
def a_grid_that_is_no_numbers_breaks_the_graph() -> None:
    def function(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        add_kernel[(True, 1)](x * 2, x, out, 10, BLOCK=16)
        return out + 1

    x = torch.randn(10)
    agrees(flashover.compile(function), function, x)
    (found,) = flashover.explain(function)(x).breaks
    assert "Triton kernel whose grid" in found["reason"], found


@check
def a_kernel_that_writes_nothing_breaks_the_graph() -> None:
    """(Launched behind the break it called itself without end: the launch was captured again.)"""

    @triton.jit
    def idle_kernel(x_ptr):
        pass

    def function(x: Tensor) -> Tensor:
        y = x * 2
        idle_kernel[(1,)](y)
        return y + 1

    agrees(flashover.compile(function), function, torch.randn(10))


@check
def a_page_names_the_kernel() -> None:
    (step,) = flashover.explain(add)(torch.randn(10), torch.randn(10)).externs
    assert step["name"].split(".")[1] == "add_kernel", step
    assert all(line.split(":")[0].endswith("kernel_programs.py") for line in step["lines"]), step


def run(name: str) -> str | None:
    if name in PROGRAMS:
        return wrong(name)
    CHECKS[name]()
    return None


if __name__ == "__main__":
    found: dict[str, str | None] = {}
    for case in sys.argv[1:] or [*PROGRAMS, *CHECKS]:
        try:
            found[case] = run(case)
        except Exception:  # the report is what the test looks at
            found[case] = traceback.format_exc()
    print("RESULT" + json.dumps(found))
