"""Programs that ask for a size by its value: one compile for the first size, one for all, each result as eager's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import double, no_further_off
from size_value_programs import ONCE_A_SIZE, PROGRAMS, SIZES, WAYS
from torch.utils import _pytree as pytree

import flashover

T = torch.Tensor


def exactly(f: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> list[Any] | None:
    """None: the program has tensors of its own, in fp32."""
    try:
        return pytree.tree_leaves(f(*map(double, args)))
    except RuntimeError:
        return None


def check(got: Any, f: Callable[..., Any], args: tuple[torch.Tensor, ...], n: int) -> None:
    ours, eager, exact = pytree.tree_leaves(got), pytree.tree_leaves(f(*args)), exactly(f, args)
    assert len(ours) == len(eager)
    for i, (a, b) in enumerate(zip(ours, eager, strict=True)):
        if isinstance(b, torch.Tensor):
            judge = exact[i] if exact is not None and exact[i].is_floating_point() else None
            no_further_off(a, b, judge, f"size {n}, result {i}")
        else:
            assert type(a) is type(b) and a == b, f"size {n}: {a!r} for {b!r}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_compiles_serve_every_size(name: str) -> None:
    f, make = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True, options={"recompile_limit": 64})
    before = flashover.compile_stats()["graphs"]
    for n in SIZES:
        check(compiled(*make(n)), f, make(n), n)
    made = flashover.compile_stats()["graphs"] - before
    expected = made > 1 + WAYS.get(name, 1)
    assert expected == (name in ONCE_A_SIZE), f"compiled {made} times"


@torch.library.custom_op("flashover_sizes::first_rows", mutates_args=())
def first_rows(x: T, n: int) -> T:
    return x[:n].clone()


@first_rows.register_fake
def _(x: T, n: int) -> T:
    return x.new_empty(n, x.shape[1])


@torch.library.custom_op("flashover_sizes::product", mutates_args=())
def product(x: T, y: T) -> T:
    return x @ y


@product.register_fake
def _(x: T, y: T) -> T:
    return x.new_empty((x.shape[0], y.shape[1]))


@torch.library.custom_op("flashover_sizes::by_number", mutates_args=())
def by_number(x: T) -> T:
    return x.repeat(2, 1)


@by_number.register_fake
def _(x: T) -> T:
    return x.new_empty(len(list(range(x.shape[0]))) * 2, x.shape[1])


REGISTERED: dict[str, tuple[Callable[[T], T], bool]] = {  # and whether one compile serves all sizes
    "a count": (lambda x: first_rows(x + 1, x.shape[0] // 2) * 2, False),  # its Python is called with numbers
    "by its name": (lambda x: torch.ops.flashover_sizes.first_rows(x, x.shape[0] - 1), True),
    "two sizes": (lambda x: product(x, x.t().contiguous()).sum(0), True),
    "numbers needed": (lambda x: by_number(x) + 1, False),
}


@pytest.mark.parametrize("name", REGISTERED)
def test_shape_functions_of_registered_operators_get_symbols(name: str) -> None:
    f, once = REGISTERED[name]
    compiled = flashover.compile(f, fullgraph=True, dynamic=True, options={"recompile_limit": 64})
    before = flashover.compile_stats()["graphs"]
    for n in SIZES:
        x = torch.randn(n + 4, 16)
        torch.testing.assert_close(compiled(x), f(x), rtol=1e-4, atol=1e-4)
    made = flashover.compile_stats()["graphs"] - before
    assert made == 1 if once else 1 < made <= len(SIZES)


def test_a_count_for_a_registered_operator_is_guarded() -> None:
    """Python around it runs by itself, and sees the number: of another tensor's size, here."""
    compiled = flashover.compile(lambda x, y: first_rows(x, y.shape[0] // 2) + 1, fullgraph=True, dynamic=True)
    for n in (8, 31, 14):
        x, y = torch.randn(40, 16), torch.randn(n)
        assert torch.equal(compiled(x, y), x[: n // 2] + 1)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.float16])
def test_sizes_that_a_dtype_does_not_hold_are_eagers(dtype: torch.dtype) -> None:
    def f(x: T) -> T:
        return torch.ones(3, dtype=dtype) + x.shape[0]

    def filled(x: T) -> T:
        return torch.full((3,), x.shape[0], dtype=dtype)

    for program in (f, filled):
        compiled = flashover.compile(program, dynamic=True, options={"recompile_limit": 64})
        for n in (5, 100, 127, 128, 255, 256, 300, 32767, 32768, 65504, 70000):
            x = torch.empty(n)
            try:
                want = program(x)
            except RuntimeError as error:
                with pytest.raises(RuntimeError, match=re.escape(str(error)[:40])):
                    compiled(x)
            else:
                assert torch.equal(compiled(x), want), (program, n)


@pytest.mark.parametrize("factor", [0.1, 0.29, 0.5, 0.7, 1.3, 1.5, 2.75, 1e-3])
def test_whole_parts_of_a_size_are_pythons(factor: float) -> None:
    def f(x: T) -> tuple[Any, ...]:
        n = x.shape[0]
        return (
            x.new_ones(3) * int(n * factor),
            *(int(n * factor), math.floor(n / (factor + 1)), math.ceil(n * factor), round(n * factor + 0.25)),
        )

    compiled = flashover.compile(f, dynamic=True, fullgraph=True, options={"recompile_limit": 64})
    for n in (*range(2, 60, 7), 99, 100, 101, 300, 700, 16383, 16384, 16385, 40001):
        got, want = compiled(torch.empty(n)), f(torch.empty(n))
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:], n


def any_is_global(x: T) -> T:
    """As Longformer asks of a mask that it filled and padded itself."""
    mask = F.pad(torch.ones(x.shape[0], x.shape[1]), (0, 3), value=0)
    bias = (1.0 - mask[:, None, :].expand(-1, 2, -1)) * torch.finfo(torch.float32).min
    row = bias[:, 1]
    row[mask == 2] = torch.finfo(torch.float32).max
    return x * 2 if (row > 0).flatten().any().item() else x + row[:, : x.shape[1]]


def all_are_small(x: T) -> T:
    mask = torch.cat([torch.zeros_like(x, dtype=torch.int64), x.new_full(x.shape, 3.7, dtype=torch.int64)], 1)
    return x * 2 if (mask <= 3).all() and not (torch.full_like(x, 2) - 2 * mask[:, :1] < -9).any() else x


def inverted(x: T) -> T:
    mask = 1.0 - F.pad(torch.ones(x.shape, dtype=torch.int64), (0, 5))[:, None].expand(-1, 2, -1).to(torch.float32)
    bias = mask.masked_fill(mask.to(torch.bool), torch.finfo(torch.float32).min) * mask
    return x * 2 if (bias > 0).any() else x + bias[:, 0, : x.shape[1]]


@pytest.mark.parametrize("f", [any_is_global, all_are_small, inverted])
def test_truths_of_what_was_filled_are_those_of_all_sizes(f: Callable[[T], T]) -> None:
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for n in (5, 2, 3, 17, 64):
        x = torch.randn(n, n + 3)
        assert torch.equal(compiled(x), f(x))
    assert flashover.compile_stats()["graphs"] - before <= 2


def test_what_was_written_since_has_no_old_truth() -> None:
    def f(x: T) -> T:
        mask = torch.zeros_like(x)
        rows = mask[:2]
        rows[x[:2] > 0] = 3
        first = x + 1 if (mask > 4).any() else x + 2
        mask += x
        return first * 2 if (rows < 3.5).all() else first

    for n in (3, 4):
        for x in (torch.randn(n, 3), torch.randn(n, 3) + 9):
            assert torch.equal(flashover.compile(f, dynamic=True)(x), f(x))


def test_what_may_be_nan_has_no_known_truth() -> None:
    def f(x: T) -> T:
        return x + 1 if (torch.zeros_like(x) * x.new_full((), torch.inf) <= 0).all() else x + 2

    for n in (3, 4):
        x = torch.randn(n)
        assert torch.equal(flashover.compile(f, dynamic=True)(x), f(x))


def test_a_truth_that_sizes_decide_is_that_of_each_size() -> None:
    def f(x: T) -> T:
        return x * 2 if (torch.arange(x.shape[0]) > 10).any() else x + 1

    compiled = flashover.compile(f, fullgraph=True, options={"recompile_limit": 64})
    for n in (5, 11, 12, 17, 3, 0, 1, 40):
        x = torch.randn(n)
        assert torch.equal(compiled(x), f(x)), n


class Framed(torch.nn.Module):
    """As audio codecs count their frames: with numbers in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stride", torch.tensor(4, dtype=torch.int64))
        self.register_buffer("left", torch.tensor(3, dtype=torch.int64))

    def forward(self, x: T) -> T:
        n = x.shape[-1]
        frames = torch.ceil((n - self.left) / self.stride + 1).to(torch.int64)
        extra = frames * self.stride - n
        if n <= max(self.left, extra):
            x = F.pad(x, (0, 8))
        return F.pad(x, (self.left, extra)) * 2


def test_numbers_in_buffers_stay_known_when_sizes_change() -> None:
    module = Framed()
    compiled = flashover.compile(module, fullgraph=True, options={"recompile_limit": 64})
    for n in (16, 17, 21, 33, 2, 100):
        x = torch.randn(2, n)
        assert torch.equal(compiled(x), module(x)), n
    compiled = flashover.compile(module)
    assert torch.equal(compiled(x), module(x))
    module.stride.fill_(8)
    for n in (16, 17, 100, 41):
        x = torch.randn(2, n)
        assert torch.equal(compiled(x), module(x)), n
