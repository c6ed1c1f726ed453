"""Sizes of 0 and 1 are served by the compile for all sizes, wherever what the program returns is of the same type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import differ
from sized_programs import PROGRAMS

import flashover

SIZES = (5, 1, 2, 3, 7, 8, 64, 127)
WITH_ZERO = (5, 0, 1, 2, 3, 7, 8, 64, 127)
# Compiled once more for size 1, and why.
OWN_COMPILE = {
    "transpose, contiguous": "contiguous() of one column is the tensor itself, whose strides the result has",
    "heads": "that 4 * (c // 4) is c takes more algebra than there is",
    "heads, batch": "whether it is a view asks if one head of all is all there is",
}
# And for size 0.
OWN_COMPILE_OF_ZERO = {
    "transpose, contiguous": "as for 1",
    "permute": "eager's strides of the result are others",
    "heads": "as for 1",
    "heads, batch": "as for 1",
    "attention": "eager takes another way where there is nothing to attend to",
    "arithmetic on sizes": "that slice is all of the tensor then",
    "last": "raises: there is none",
    "max": "raises for no elements",
    "argmax": "raises for no elements",
}


def graphs_made(
    f: Callable[..., object], shape: Callable[[int], tuple[int, ...]], sizes: tuple[int, ...], **how: object
) -> int:
    compiled = flashover.compile(f, fullgraph=True, options={"recompile_limit": 64}, **how)
    flashover.reset()
    before = flashover.compile_stats()["graphs"]
    for n in sizes:
        x, y = (torch.randn(shape(n)) for _ in range(2))
        y.copy_(x)
        assert (wrong := differ(compiled(x), f(y), rtol=1e-4, atol=1e-4)) == "", f"size {n}: {wrong}"
        assert (wrong := differ(x, y)) == "", f"size {n}, the input: {wrong}"
    return flashover.compile_stats()["graphs"] - before


@pytest.mark.filterwarnings("ignore:var_mean")  # of one element
@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_of_one_and_more(name: str) -> None:
    f, shape = PROGRAMS[name]
    more = name in OWN_COMPILE
    assert graphs_made(f, shape, SIZES, dynamic=True) <= 1 + more
    assert graphs_made(f, shape, SIZES) <= 2 + more, "the first for its size alone, the second for all"


def result(f: Callable[..., object], *args: object) -> object:
    try:
        return f(*args)
    except (IndexError, RuntimeError, ZeroDivisionError) as e:
        return type(e)


def graphs_made_with_errors(
    f: Callable[..., object], shape: Callable[[int], tuple[int, ...]], sizes: tuple[int, ...]
) -> int:
    """Values, strides, writes and kinds of errors are eager's at each size."""
    flashover.reset()
    compiled = flashover.compile(f, dynamic=True, options={"recompile_limit": 64})
    before = flashover.compile_stats()["graphs"]
    for n in sizes:
        x, y = (torch.randn(shape(n)) for _ in range(2))
        y.copy_(x)
        got, want = result(compiled, x), result(f, y)
        assert (wrong := differ(got, want, rtol=1e-4, atol=1e-4)) == "", f"size {n}: {wrong}"
        assert (wrong := differ(x, y)) == "", f"size {n}, the input: {wrong}"
    return flashover.compile_stats()["graphs"] - before


@pytest.mark.filterwarnings("ignore:var_mean")
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_elements(name: str) -> None:
    """Values, strides and errors are eager's; also where the size of 0 comes first, which is traced as a larger one."""
    f, shape = PROGRAMS[name]
    more = (name in OWN_COMPILE) + (name in OWN_COMPILE_OF_ZERO)
    for sizes in (WITH_ZERO, (0, *SIZES)):
        assert graphs_made_with_errors(f, shape, sizes) <= 1 + more


@pytest.mark.filterwarnings("ignore:var_mean")
@pytest.mark.parametrize("name", PROGRAMS)
def test_size_one_comes_first(name: str) -> None:
    """It is traced as a larger size then."""
    f, shape = PROGRAMS[name]
    assert graphs_made(f, shape, (1, 2, 5, 64, 1), dynamic=True) <= 1 + (name in OWN_COMPILE)


def test_size_one_comes_second() -> None:
    assert graphs_made(lambda x: (x.exp() + 1).sum(-1), lambda n: (n, 16), (5, 1, 7, 8, 2)) == 2


def test_two_sizes_of_one() -> None:
    shapes = ((5, 1), (1, 7), (1, 1), (3, 4), (2, 1))
    compiled = flashover.compile(lambda x: (x.softmax(-1), x.sum(0)), dynamic=True, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for shape in shapes:
        x = torch.randn(shape)
        assert differ(compiled(x), (x.softmax(-1), x.sum(0)), rtol=1e-5, atol=1e-6) == ""
    assert flashover.compile_stats()["graphs"] - before == 1


def rows_twice(x: torch.Tensor) -> torch.Tensor:
    y = x.transpose(0, 1).reshape(-1)
    return y.add_(1)


def rows(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).reshape(-1)


def branch(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] == 1 else x.sum(0)


# What they return, or write, is of another kind where the size is 1.
TELLING = {
    "squeeze": (lambda x: (x * 2).squeeze(), lambda n: (n, 4)),
    "squeeze in place": (lambda x: (x * 2).squeeze_(), lambda n: (n, 4)),
    "squeeze of a part in place": (lambda x: (x * 2).select(-1, 0).squeeze_((0,)), lambda n: (n, 4)),
    "squeeze of all but one in place": (lambda x: (x * 2)[1:].squeeze_(0), lambda n: (n, 4)),
    "squeeze and write": (lambda x: (x * 2).squeeze_(0).mul_(3).unsqueeze_(0), lambda n: (n, 4)),
    "a view is written": (rows_twice, lambda n: (n, 4)),
    "a view is returned": (rows, lambda n: (n, 4)),
    "a view of a column is returned": (rows, lambda n: (4, n)),
    "a branch": (branch, lambda n: (n, 4)),
    "a number": (lambda x: (torch.full((4,), x.shape[0] * 1.5), x // 2, x.unfold(0, 1, 1)), lambda n: (n, 4)),
    "parts": (lambda x: x.split(2, 0)[-1] * 2, lambda n: (n, 4)),
    "strides": (lambda x: x.t() * 2, lambda n: (n, 4)),
    "strides of a column": (lambda x: x.t() * 2, lambda n: (4, n)),
    "expand": (lambda x: x.expand(4, 4) + 1, lambda n: (n, 4)),
    "itself": (lambda x: (x.t().contiguous().t(), x.t().reshape(4, -1) is x), lambda n: (n, 4)),
}

ONCE_A_SIZE = ("a number", "parts")  # and what takes a size as a number


@pytest.mark.parametrize("name", TELLING)
def test_what_differs_at_one_is_compiled_for_one(name: str) -> None:
    f, shape = TELLING[name]
    sizes = (4, 1, 4) if name == "expand" else (5, 1, 2, 7, 1)
    for some in (sizes, sizes[1:]):
        assert graphs_made(f, shape, some, dynamic=True) <= (len(set(some)) if name in ONCE_A_SIZE else 3)


def aliases(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> bool:
    return f(x).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_memory_is_shared_as_in_eager() -> None:
    compiled = flashover.compile(rows, dynamic=True)
    for shape in ((5, 4), (1, 4), (5, 1), (1, 1), (2, 3)):
        x = torch.randn(shape)
        assert aliases(compiled, x) == aliases(rows, x), shape


def test_the_guard_says_where() -> None:
    compiled = flashover.compile(TELLING["squeeze"][0], dynamic=True)
    compiled(torch.randn(5, 4))
    assert "2 <= x.shape[0]" in flashover.explain(compiled)(torch.randn(5, 4)).text()


CONVOLUTION = torch.nn.Conv2d(3, 4, 3, padding=1).requires_grad_(False)
BATCH_NORM = torch.nn.BatchNorm2d(3).eval().requires_grad_(False)
ROWS = torch.linspace(-1, 1, 5 * 16).view(5, 16)


def images(n: int) -> tuple[int, ...]:
    return (n, 3, 8, 8)


def matrix(n: int) -> tuple[int, ...]:
    return (n, 16)


# What is computed of nothing, and whether that has a compile of its own.
OF_NOTHING: dict[str, tuple[Callable[..., object], Callable[[int], tuple[int, ...]], bool]] = {
    "a mean is NaN": (lambda x: (x.mean(), x.mean(0), x.std(0), F.mse_loss(x, x + 1)), matrix, False),
    "a product is 1": (lambda x: (x.prod(0), (x > 0).all(0), (x > 0).any(0)), matrix, False),
    "a sum is 0": (lambda x: (x.sum(0), x.norm(dim=0), x.nansum(), x.logsumexp(0)), matrix, False),
    "a matrix product is 0": (lambda x: (x.t() @ x, torch.addmm(ROWS.t() @ ROWS, x.t(), x)), matrix, False),
    "a batched product is 0": (lambda x: x.transpose(1, 2) @ x, lambda n: (3, n, 16), False),
    "a linear layer is its bias": (lambda x: F.linear(x, x[:2] + 1, ROWS[0, :2]), lambda n: (4, n), False),
    "norms": (lambda x: (F.layer_norm(x, (x.shape[-1],)), F.rms_norm(x, (x.shape[-1],))), lambda n: (4, n), False),
    "places": (lambda x: ROWS.index_add(0, torch.zeros(x.shape[0], dtype=torch.long), x), matrix, False),
    "scans": (lambda x: (x.cumsum(0), x.softmax(0), x.log_softmax(0), x.sort(0)[0]), matrix, False),
    "images": (
        lambda x: (CONVOLUTION(x), F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)),
        images,
        True,  # where it comes first
    ),
    "batch norm of no batch": (lambda x: BATCH_NORM(x), images, True),
    "larger images": (lambda x: (F.interpolate(x, scale_factor=2), F.avg_pool2d(x, 2)), images, False),
    "attention of no batch": (lambda x: F.scaled_dot_product_attention(x, x, x), lambda n: (n, 2, 5, 16), False),
    "attention to nothing": (
        lambda x: F.scaled_dot_product_attention(ROWS.view(1, 1, 5, 16), x, x),
        lambda n: (1, 1, n, 16),
        True,
    ),
    "an index": (lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)] + x[x[:, 0] > 0].sum(0), matrix, False),
    "a loss is NaN": (lambda x: F.cross_entropy(x, torch.arange(x.shape[0]) % 16), matrix, False),
    "an index of nothing raises": (lambda x: x[torch.zeros(3, dtype=torch.long)] * 2, matrix, True),
    "written": (lambda x: x.add_(1)[:, 2:5].mul_(2), matrix, False),
    "blocks": (lambda x: torch.block_diag(x, ROWS, x * 2), matrix, False),
    "a maximum raises": (lambda x: x.max(0), matrix, True),
    "a median raises": (lambda x: x.median(0)[0], matrix, True),
    "an index raises": (lambda x: x[-1] * 2, matrix, True),
    "a pool raises": (lambda x: F.max_pool2d(x, 2, padding=1), lambda n: (2, 3, n, 8), True),
    "a shape raises": (lambda x: x.view(x.shape[0], -1) * 2, lambda n: (n, 4, 4), True),
    "a division raises": (lambda x: x * (100 // x.shape[0]), matrix, True),
    "a branch": (lambda x: x * 2 if x.shape[0] > 0 else x.t(), matrix, True),
}


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("name", OF_NOTHING)
def test_of_nothing(name: str) -> None:
    f, shape, own = OF_NOTHING[name]
    for sizes in ((5, 0, 7, 64), (0, 7)):
        assert graphs_made_with_errors(f, shape, sizes) <= 1 + own


def test_two_sizes_of_nothing() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.softmax(-1), x.sum(0), x.sum(1), x * 2

    compiled = flashover.compile(f, dynamic=True, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for shape in ((5, 3), (0, 7), (7, 0), (0, 0), (0, 1), (1, 0), (3, 4)):
        x = torch.randn(shape)
        assert differ(compiled(x), f(x), rtol=1e-5, atol=1e-6) == "", shape
    assert flashover.compile_stats()["graphs"] - before <= 2, "no rows of one column have strides of their own"


def test_strides_of_no_elements_are_looked_at() -> None:
    compiled = flashover.compile(lambda x: x * 2, dynamic=True)
    for x in (torch.randn(4, 5), torch.randn(4, 0), torch.empty_strided((4, 0), (0, 1)), torch.randn(8, 0)[::2]):
        assert differ(compiled(x), x * 2) == ""


def test_the_guard_against_nothing_says_where() -> None:
    compiled = flashover.compile(lambda x: x.max(0), dynamic=True)
    compiled(torch.randn(5, 4))
    assert "1 <= x.shape[0]" in flashover.explain(compiled)(torch.randn(5, 4)).text()


def attend(x: torch.Tensor) -> torch.Tensor:
    b, t, c = x.shape
    q = x.view(b, t, 4, c // 4).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(b, t, c)


def test_attention_over_one_batch_and_one_token() -> None:
    compiled = flashover.compile(attend, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for b, t in ((3, 7), (2, 9), (1, 5), (4, 1), (1, 1), (1, 64)):
        x = torch.randn(b, t, 32)
        assert differ(compiled(x), attend(x), rtol=1e-4, atol=1e-5) == ""
    assert flashover.compile_stats()["graphs"] - before <= 2


def test_training_at_small_sizes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 2))
    compiled = flashover.compile(model, dynamic=True)
    before = flashover.compile_stats()["graphs"]
    for n in (6, 1, 0, 3, 1, 17, 0):
        x = torch.randn(n, 8)
        grads = []
        for f in (compiled, model):
            model.zero_grad()
            f(x).square().mean().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        assert differ(*grads, rtol=1e-4, atol=1e-5) == "", n
    assert flashover.compile_stats()["graphs"] - before == 1


@pytest.mark.parametrize("shifts, dims", [(2, 0), ((5, -2), (0, 1)), (3, None)])
def test_rolled_by_more_than_there_is(shifts: Any, dims: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.roll(shifts, dims) * 2

    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["eager_calls"]
    for n in (5, 8, 3, 1, 0):
        x = torch.randn(n, 6)
        assert torch.equal(compiled(x), f(x)), n
    assert flashover.compile_stats()["eager_calls"] == before
