"""What torch._dynamo.mark_dynamic and its kin say of sizes: kept, or an error with the line that contradicts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo import mark_dynamic, mark_static, maybe_mark_dynamic
from torch._dynamo.decorators import mark_unbacked
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

import flashover


def graphs() -> int:
    return flashover.compile_stats()["graphs"]


def marked(n: int, mark: Callable[..., None] = mark_dynamic, dim: int = 0, **how: Any) -> torch.Tensor:
    x = torch.randn(n, 4)
    mark(x, dim, **how)
    return x


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def one_size_apart(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] == 5 else x * 2


def a_loop(x: torch.Tensor) -> torch.Tensor:
    for i in range(x.shape[0]):
        x = x + i
    return x


def plus_a_constant(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(5, 4)


def below_six(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] < 6 else x * 2


@pytest.mark.parametrize("f", [one_size_apart, a_loop, plus_a_constant])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_program_that_takes_a_marked_size_for_a_number(f: Callable[..., Any], fullgraph: bool) -> None:
    fast = flashover.compile(f, fullgraph=fullgraph)
    line = f.__code__.co_firstlineno + 1
    for _ in range(2):  # not only the first time
        with pytest.raises(ConstraintViolationError, match=rf"x\.shape\[0\].*constant 5 at .*:{line}: ") as raised:
            fast(marked(5))
    assert isinstance(raised.value, flashover.exc.FlashoverError)
    assert raised.value.where.endswith(f"test_marks.py:{line}")
    x = torch.randn(5, 4)
    assert torch.equal(fast(x), f(x)), "without the mark it is compiled for the number"


def test_a_mark_that_the_program_only_narrows() -> None:
    fast = flashover.compile(below_six)
    before = graphs()
    for n in (5, 4, 3, 7, 8):
        x = marked(n)
        assert torch.equal(fast(x), below_six(x))
    assert graphs() - before == 2


def test_equal_sizes_are_no_contradiction() -> None:
    fast = flashover.compile(lambda x, y: x + y)
    fast(marked(5), marked(5))
    before = graphs()
    x, y = torch.randn(2, 7, 4)
    assert torch.equal(fast(x, y), x + y)
    assert graphs() == before


def test_bounds() -> None:
    fast = flashover.compile(double)
    before = graphs()
    for n in (5, 3, 8):
        x = marked(n, min=3, max=8)
        assert torch.equal(fast(x), x * 2)
    assert graphs() - before == 1
    for n in (9, 2, 30):  # unmarked
        x = torch.randn(n, 4)
        assert torch.equal(fast(x), x * 2)
    assert graphs() - before == 2


def test_bounds_that_the_call_exceeds() -> None:
    fast = flashover.compile(double)
    with pytest.raises(ConstraintViolationError, match="9 is not in its range from 3 to 8"):
        fast(marked(9, min=3, max=8))
    with pytest.raises(ConstraintViolationError, match="2 is not in its range from 3 to 8"):
        fast(marked(2, min=3, max=8))
    with pytest.raises(ConstraintViolationError, match="not in its range from 9 to 3"):
        fast(marked(8, min=9, max=3))


def test_bounds_that_the_program_parts() -> None:
    fast = flashover.compile(below_six)
    line = below_six.__code__.co_firstlineno + 1
    with pytest.raises(ConstraintViolationError, match=rf"6 does not satisfy x\.shape\[0\] < 6 at .*:{line}: "):
        fast(marked(5, min=3, max=8))
    x = marked(5, min=3, max=5)
    assert torch.equal(fast(x), x + 1)
    with pytest.raises(ConstraintViolationError, match=r"at least 3, but 6 does"):
        flashover.compile(below_six)(marked(5, min=3))


def test_bounds_answer_questions() -> None:
    fast = flashover.compile(lambda x: x + 1 if x.shape[0] < 10 else x * 2)
    before = graphs()
    for n in (5, 3, 8):
        x = marked(n, min=3, max=8)
        assert torch.equal(fast(x), x + 1)
    assert graphs() - before == 1


@pytest.mark.parametrize("n", [0, 1])
def test_a_mark_on_a_size_of_0_or_1(n: int) -> None:
    fast = flashover.compile(double)
    x = marked(n)
    assert torch.equal(fast(x), x * 2)


def test_maybe_mark_dynamic() -> None:
    fast = flashover.compile(a_loop)
    for n in (5, 6):
        x = marked(n, maybe_mark_dynamic)
        assert torch.equal(fast(x), a_loop(x))
    fast = flashover.compile(double)
    before = graphs()
    for n in (5, 6, 7):
        fast(marked(n, maybe_mark_dynamic))
    assert graphs() - before == 1


def test_mark_static() -> None:
    fast = flashover.compile(double)
    before = graphs()
    for n in (5, 6, 7):
        fast(marked(n, mark_static))
    assert graphs() - before == 3
    fast = flashover.compile(double, dynamic=True)
    before = graphs()
    for n in (5, 6, 7):
        x = marked(n, mark_static)
        assert torch.equal(fast(x), x * 2)
    assert graphs() - before == 3


def test_mark_dynamic_counts_more_than_mark_static() -> None:
    fast = flashover.compile(double)
    before = graphs()
    for n in (5, 6, 7):
        x = marked(n, mark_static)
        mark_dynamic(x, 0)
        fast(x)
    assert graphs() - before == 1


def test_marks_count_under_dynamic_false() -> None:
    fast = flashover.compile(double, dynamic=False)
    before = graphs()
    fast(marked(5))
    for n in (6, 7):
        fast(torch.randn(n, 4))
    assert graphs() - before == 1
    for columns in (5, 6):
        fast(torch.randn(5, columns))
    assert graphs() - before == 3


def test_mark_static_in_the_program() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        mark_static(x, 0)
        return x * 2

    fast = flashover.compile(f, dynamic=True)
    before = graphs()
    for n in (5, 6):
        x = torch.randn(n, 4)
        assert torch.equal(fast(x), x * 2)
    assert graphs() - before == 2


def test_mark_unbacked() -> None:
    fast = flashover.compile(double)
    before = graphs()
    for n in (5, 2, 7):
        x = marked(n, mark_unbacked)
        assert torch.equal(fast(x), x * 2)
    assert graphs() - before == 1
    with pytest.raises(ConstraintViolationError, match="constant 5"):
        flashover.compile(a_loop)(marked(5, mark_unbacked))
    x = marked(5, mark_unbacked)  # not strict: what the sizes it meets say of it is no error
    assert torch.equal(flashover.compile(plus_a_constant)(x), plus_a_constant(x))
    with pytest.raises(ConstraintViolationError, match="constant 5"):
        flashover.compile(plus_a_constant)(marked(5, mark_unbacked, strict=True))


def test_specialize_on() -> None:
    fast = flashover.compile(double)
    before = graphs()
    for n in (8, 8, 9, 10, 11, 8):
        x = marked(n, specialize_on=[lambda n: n == 8])
        assert torch.equal(fast(x), x * 2)
    assert graphs() - before == 2


def test_dims_that_are_not_there() -> None:
    x = marked(5, dim=7)
    mark_dynamic(x, -1)
    assert torch.equal(flashover.compile(double)(x), x * 2)


def test_allow_ignore_mark_dynamic() -> None:
    x = marked(5)
    with torch._dynamo.config.patch(allow_ignore_mark_dynamic=True):
        assert torch.equal(flashover.compile(a_loop)(x), a_loop(x))


def test_after_a_graph_break() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        print(end="")
        return x.sum() + y * 2

    fast = flashover.compile(f)
    before = graphs()
    for n in (5, 6, 7):
        x, y = torch.randn(3), marked(n)
        assert torch.allclose(fast(x, y), f(x, y))
    assert graphs() - before == 2

    def g(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        print(end="")
        return x.sum() + a_loop(y)

    with pytest.raises(ConstraintViolationError, match=r"y\.shape\[0\]"):
        flashover.compile(g)(torch.randn(3), marked(5))


@pytest.mark.parametrize("sources", ["x", "L['x']", "nothing, x", r"L\['x'\]", "[xy]"])
def test_dynamic_sources(sources: str) -> None:
    fast = flashover.compile(double, options={"dynamic_sources": sources})
    before = graphs()
    for n in (5, 6, 7):
        x = torch.randn(n, 4)
        assert torch.equal(fast(x), x * 2)
    assert graphs() - before == 1


def test_dynamic_sources_of_torch() -> None:
    with torch.compiler.config.patch(dynamic_sources="L['x'],L['n']"):
        fast = flashover.compile(lambda x, n: x * n)
        before = graphs()
        for n in (5, 6, 7):
            x = torch.randn(n, 4)
            assert torch.equal(fast(x, n), x * n)
        assert graphs() - before == 1


def test_static_sources() -> None:
    fast = flashover.compile(lambda x, y, n: x.sum() * y * n, options={"static_sources": "y, n"})
    before = graphs()
    for n in (5, 6, 7):
        fast(torch.randn(n), torch.randn(3), 2)
    assert graphs() - before == 2
    for n in (5, 6, 7):
        fast(torch.randn(5), torch.randn(n), 2)
    for n in (5, 6, 7):
        fast(torch.randn(5), torch.randn(3), n)
    assert graphs() - before == 8


def test_checks_over_sizes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] > 3, lambda: f"too few: {x.shape[0]}")
        torch._check_value(x.shape[0] % 2 == 0)
        return x + 1

    fast = flashover.compile(f, fullgraph=True)
    before = graphs()
    for n in (4, 6, 8, 10):
        x = torch.randn(n, 4)
        assert torch.equal(fast(x), x + 1)
    assert graphs() - before == 2
    with pytest.raises(RuntimeError, match="too few: 2"):
        fast(torch.randn(2, 4))
    with pytest.raises(ValueError):
        fast(torch.randn(7, 4))
    with pytest.raises(RuntimeError, match="too few: 3"):
        fast(marked(3))


def test_checks_that_cannot_hold() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] > 3)
        torch._check(x.shape[0] < 2)
        return x + 1

    for n in (5, 1):
        with pytest.raises(RuntimeError, match="Expected cond to be True"):
            flashover.compile(f, fullgraph=True)(marked(n))


def test_a_check_that_fixes_a_marked_size() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] == 5)
        return x + 1

    with pytest.raises(ConstraintViolationError, match="constant 5"):
        flashover.compile(f)(marked(5))
