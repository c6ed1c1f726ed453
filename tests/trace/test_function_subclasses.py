"""Tensors of a class with a name or a __torch_function__ of its own: the class's Python is part of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flashover


class Named(Tensor):
    pass


class Passed(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Tagged(Tensor):
    """It hands its tag on to what is computed of it."""

    tag: str

    @staticmethod
    def of(tensor: Tensor, tag: str) -> Tagged:
        made = tensor.as_subclass(Tagged)
        made.tag = tag
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        tag = next((a.tag for a in args if isinstance(a, Tagged)), "none")
        if isinstance(out, Tensor) and not isinstance(out, Tagged) and out.is_floating_point():
            return Tagged.of(out, tag)
        return out


def plain(t: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return t.as_subclass(Tensor) if isinstance(t, Tensor) else t


def check(got: Any, wanted: Any) -> None:
    if isinstance(wanted, (list, tuple)):
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            check(a, b)
        return
    assert type(got) is type(wanted)
    if not isinstance(wanted, Tensor):
        assert got == wanted
        return
    assert getattr(got, "tag", None) == getattr(wanted, "tag", None)
    torch.testing.assert_close(plain(got), plain(wanted))


def tagged(*sizes: int, tag: str = "a") -> Tagged:
    return Tagged.of(torch.randn(*sizes), tag)


@pytest.mark.parametrize("kind", [Named, Passed])
@pytest.mark.parametrize(
    "function",
    [
        lambda t: torch.sin(t) * 2,
        lambda t: (t.t() @ t, t.sum(), t.shape[0], t.max(0)),
        lambda t: t.as_subclass(Tensor) + 1,
        lambda t: t,
    ],
)
def test_results_are_of_the_class(kind: type[Tensor], function: Callable[..., Any]) -> None:
    t = torch.randn(3, 4).as_subclass(kind)
    fast = flashover.compile(function, fullgraph=True)
    for _ in range(2):
        check(fast(t), function(t))


def test_attributes_of_instances() -> None:
    def function(t: Any) -> Any:
        return t + 1, t.t() @ t, Tagged.of(plain(t) * 2, "made"), t.shape[0]

    fast = flashover.compile(function, fullgraph=True)
    for tag in ("a", "b", "a"):
        t = tagged(3, 4, tag=tag)
        check(fast(t), function(t))


def test_one_that_is_written() -> None:
    def function(t: Any) -> Any:
        t.add_(1)
        return t.mul_(2)

    mine, theirs = Tagged.of(torch.zeros(3), "a"), Tagged.of(torch.zeros(3), "a")
    got, wanted = flashover.compile(function, fullgraph=True)(mine), function(theirs)
    check([got, mine], [wanted, theirs])
    assert got is mine and mine._version == theirs._version


def test_gradients() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4).as_subclass(Named))
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return (self.linear(x) @ self.weight).relu()

    model, x = Model(), torch.randn(2, 4, requires_grad=True)
    grads = []
    for run in (flashover.compile(model, fullgraph=True), model):
        out = run(x)
        assert type(out) is Named
        grads.append(torch.autograd.grad(out.sum(), [x, *model.parameters()]))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(plain(a), plain(b))


def test_a_graph_break_between() -> None:
    def function(t: Any) -> Any:
        y = t * 2
        flashover.graph_break()
        return y + 1

    t = tagged(3)
    check(flashover.compile(function)(t), function(t))


def test_another_function_of_the_class_is_another_version() -> None:
    class Kind(Passed):
        pass

    def hundredfold(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {})) * 100

    fast = flashover.compile(lambda t: t + 1, fullgraph=True)
    t = torch.ones(2).as_subclass(Kind)
    check(fast(t), t + 1)
    check(fast(torch.ones(2)), torch.ones(2) + 1)
    Kind.__torch_function__ = classmethod(hundredfold)
    check(fast(t), t + 1)


def test_what_the_class_does_is_done_in_each_call() -> None:
    seen: list[str] = []

    class Watched(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    t = torch.ones(2).as_subclass(Watched)
    fast = flashover.compile(lambda t: torch.sin(t) + t, fullgraph=True)
    for call in range(1, 4):
        fast(t)
        assert seen == ["sin", "add"] * call
