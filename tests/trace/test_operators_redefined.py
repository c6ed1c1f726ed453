"""Operators of a program's own that are removed and defined anew, as a notebook's cells do that run again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import flashover

NAMESPACE = "flashover_redefined"


@contextmanager
def defined(schema: str, cpu: Callable[..., Any], fake: Callable[..., Any] | None = None) -> Iterator[None]:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    try:
        library.define("foo" + schema)
        library.impl("foo", cpu, "CPU")
        if fake:
            torch.library.register_fake(f"{NAMESPACE}::foo", fake, lib=library)
        yield
    finally:
        library._destroy()
        if hasattr(torch.ops, NAMESPACE):
            delattr(torch.ops, NAMESPACE)
        gc.collect()


def foo(x: Tensor, *rest: Any) -> Any:
    return getattr(torch.ops, NAMESPACE).foo(x, *rest)


def written(x: Tensor) -> Tensor:
    x.add_(5)
    return x.clone()


DEFINITIONS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any] | None]] = {
    "plain": ("(Tensor x) -> Tensor", lambda x: x * 2, torch.empty_like),
    "an int": ("(Tensor x, int a=1) -> Tensor", lambda x, a=1: x * 3 + a, lambda x, a=1: torch.empty_like(x)),
    "writes": ("(Tensor(a!) x) -> Tensor", written, torch.empty_like),
    "two": ("(Tensor x) -> (Tensor, Tensor)", lambda x: (x + 1, x.sum()), lambda x: (x.clone(), x.new_empty(()))),
    "another size": ("(Tensor x) -> Tensor", lambda x: x.repeat(2), lambda x: x.new_empty(2 * x.shape[0])),
    "no fake": ("(Tensor x) -> Tensor", lambda x: x - 1, None),
    "an alias": ("(Tensor(a) x) -> Tensor(a)", lambda x: x.view(-1), None),
}


@pytest.mark.parametrize("second", DEFINITIONS)
@pytest.mark.parametrize("first", DEFINITIONS)
def test_each_after_each(first: str, second: str) -> None:
    """The same function, compiled once: what it does after an operator of the same name took the other's place."""
    fast = flashover.compile(lambda x: (foo(x), x + 1))
    for name in (first, second, first):
        with defined(*DEFINITIONS[name]):
            for _ in range(2):
                mine, theirs = torch.ones(3), torch.ones(3)
                got, want = fast(mine), (foo(theirs), theirs + 1)
                torch.testing.assert_close(got, want)
                torch.testing.assert_close(mine, theirs)


def test_a_cell_that_runs_again() -> None:
    fast = flashover.compile(lambda op, x: op(x) + 1, fullgraph=True)
    for factor in (2.0, 3.0, 5.0):

        @torch.library.custom_op(f"{NAMESPACE}_cell::scaled", mutates_args=())
        def scaled(x: Tensor, factor: float = factor) -> Tensor:
            return x * factor

        scaled.register_fake(lambda x, factor=1.0: torch.empty_like(x))
        torch.testing.assert_close(fast(scaled, torch.ones(3)), torch.full((3,), factor + 1))


def test_kernels_that_come_later() -> None:
    """A shape function, then an autograd formula, registered between calls."""
    library = torch.library.Library(f"{NAMESPACE}_later", "FRAGMENT")
    library.define("foo(Tensor x) -> Tensor")
    library.impl("foo", lambda x: x * 2, "CPU")
    op = getattr(torch.ops, f"{NAMESPACE}_later").foo.default
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        torch.testing.assert_close(flashover.compile(lambda x: op(x) + 1)(x), torch.full((3,), 3.0))
    torch.library.register_fake(f"{NAMESPACE}_later::foo", torch.empty_like, lib=library)
    with torch.no_grad():
        whole = flashover.compile(lambda x: op(x) + 2, fullgraph=True)
        torch.testing.assert_close(whole(x), torch.full((3,), 4.0))
    torch.library.register_autograd(f"{NAMESPACE}_later::foo", lambda ctx, g: g * 7, lib=library)
    flashover.compile(lambda x: op(x) + 3)(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 7.0))


def test_a_compiled_function_outlives_an_operator() -> None:
    library = torch.library.Library(f"{NAMESPACE}_gone", "FRAGMENT")
    library.define("foo(Tensor x) -> Tensor")
    library.impl("foo", lambda x: x * 2, "CPU")
    torch.library.register_fake(f"{NAMESPACE}_gone::foo", torch.empty_like, lib=library)
    op = getattr(torch.ops, f"{NAMESPACE}_gone").foo.default
    fast = flashover.compile(lambda x: op(x) + 1, fullgraph=True)
    torch.testing.assert_close(fast(torch.ones(3)), torch.full((3,), 3.0))
    library._destroy()
    gc.collect()
    with pytest.raises(RuntimeError, match=r"flashover_redefined_gone\.foo\.default.* was removed"):
        fast(torch.ones(3))


def test_operators_defined_in_a_compiled_function() -> None:
    """Once, however often the function is captured."""

    def program(x: Tensor, factor: float) -> Tensor:
        library = torch.library.Library(f"{NAMESPACE}_inside", "FRAGMENT")
        library.define("foo(Tensor x) -> Tensor")
        torch.library.register_fake(f"{NAMESPACE}_inside::foo", torch.empty_like, lib=library)
        library.impl("foo", lambda x: x * factor, "CPU")
        op = getattr(torch.ops, f"{NAMESPACE}_inside").foo
        torch.library.opcheck(op.default, (x,))
        with torch._subclasses.FakeTensorMode():
            assert op(torch.randn(3)).shape == (3,)
        result = op(x) + 1
        library._destroy()
        delattr(torch.ops, f"{NAMESPACE}_inside")
        return result

    fast = flashover.compile(program)
    for factor in (2.0, 3.0, 4.0):
        torch.testing.assert_close(fast(torch.ones(3), factor), torch.full((3,), factor + 1))


def test_decorators_that_register_in_a_compiled_function() -> None:
    """Each takes effect once, also where the call is captured anew behind a break."""

    def program(x: Tensor, factor: float) -> Tensor:
        library = torch.library.Library(f"{NAMESPACE}_decorated", "FRAGMENT")
        name = f"{NAMESPACE}_decorated::foo"
        torch.library.define(name, "(Tensor x) -> Tensor", lib=library)

        @torch.library.impl(name, "CPU", lib=library)
        def foo(x: Tensor) -> Tensor:
            return x * factor

        @torch.library.define(library, "bar(Tensor x) -> Tensor")  # type: ignore[arg-type]
        def bar(x: Tensor) -> Tensor:
            return x + factor

        space = getattr(torch.ops, f"{NAMESPACE}_decorated")
        result = space.foo(x) + space.bar(x)
        library._destroy()
        delattr(torch.ops, f"{NAMESPACE}_decorated")
        return result

    fast = flashover.compile(program)
    for factor in (2.0, 3.0, 4.0):
        torch.testing.assert_close(fast(torch.ones(3), factor), torch.full((3,), 2 * factor + 1))


def test_a_function_that_is_made_to_take_lists() -> None:
    """The decorator puts its own functions into the class, around those that are there."""
    from torch._library.autograd import supports_tensorlist

    def program(xs: list[Tensor]) -> Tensor:
        @supports_tensorlist
        class Stack(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, xs: list[Tensor]) -> Tensor:  # type: ignore[override]
                return torch.stack(xs)

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> list[Tensor]:  # type: ignore[override]
                return list(grad.unbind(0))

        return Stack.apply(xs)

    fast = flashover.compile(program)
    for _ in range(2):
        xs = [torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)]
        fast(xs).pow(2).sum().backward()
        assert [x.grad.tolist() for x in xs] == [[2.0, 2.0], [0.0, 0.0]]


def test_an_operator_made_by_each_call() -> None:
    def program(x: Tensor, factor: float) -> Tensor:
        @torch.library.custom_op(f"{NAMESPACE}_each::scaled", mutates_args=())
        def scaled(x: Tensor) -> Tensor:
            return x * factor

        scaled.register_fake(torch.empty_like)
        return scaled(x) + 1

    fast = flashover.compile(program)
    for factor in (2.0, 3.0, 4.0):
        torch.testing.assert_close(fast(torch.ones(3), factor), torch.full((3,), factor + 1))
