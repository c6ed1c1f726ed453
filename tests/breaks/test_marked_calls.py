"""What the user marked: what such calls read and give is right in later calls, too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo

import flashover


class Scale:
    def __init__(self, by: Any) -> None:
        self.by = by
        self.inner: Any = None


@flashover.allow_in_graph
def scaled(x: torch.Tensor, scale: Any) -> torch.Tensor:
    return x * (scale.by if scale.inner is None else scale.inner[0].by)


def test_an_object_given_to_an_allowed_function_is_guarded() -> None:
    scale, compiled = Scale(2), flashover.compile(lambda x, s: scaled(x, s), fullgraph=True)
    x = torch.ones(3)
    for by in (2, 5, torch.full((3,), 7.0), torch.full((3,), 9.0)):
        scale.by = by
        assert torch.equal(compiled(x, scale), x * by)
    scale.inner = [Scale(3)]
    assert torch.equal(compiled(x, scale), x * 3)
    scale.inner[0].by = 4
    assert torch.equal(compiled(x, scale), x * 4)


def test_what_cannot_be_seen_whole_is_not_given_to_an_allowed_function() -> None:
    class Slotted:
        __slots__ = ("by", "inner")

    scale = Slotted()
    scale.inner = None
    compiled = flashover.compile(lambda x: scaled(x + 1, scale))
    for by in (2, 3):
        scale.by = by
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0 * by))
    assert "__slots__" in compiled.entries()[0]["reason"]


def test_a_module_given_to_an_allowed_function() -> None:
    @flashover.allow_in_graph
    def run(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return module.weight * x * module.k  # type: ignore[operator]

    module = torch.nn.Linear(3, 2, bias=False)
    module.k = 2
    compiled = flashover.compile(lambda x: run(module, x), fullgraph=True)
    for k in (2, 3):
        module.k = k
        assert torch.equal(compiled(torch.ones(3)), module.weight * k)
    compiled(torch.ones(3)).sum().backward()
    assert module.weight.grad is not None and torch.equal(module.weight.grad, torch.full((2, 3), 3.0))


def test_nonstrict_trace_of_a_written_object() -> None:
    torch.utils._pytree.register_pytree_node(Scale, lambda s: ((s.by,), ()), lambda by, _: Scale(*by))

    @torch._dynamo.nonstrict_trace
    def inner(scale: Scale) -> torch.Tensor:
        torch._dynamo.graph_break()
        return scale.by * 2

    def f(scale: Scale) -> tuple[Any, Any]:
        scale.by = scale.by + 1
        return inner(scale), scale.by

    one, other = Scale(torch.ones(2)), Scale(torch.ones(2))
    assert all(map(torch.equal, f(one), flashover.compile(f, fullgraph=True)(other)))
    assert torch.equal(one.by, other.by)


@pytest.mark.parametrize("mark", [flashover.assume_constant_result, torch._dynamo.assume_constant_result])
def test_a_constant_result_that_is_a_tensor(mark: Callable[..., Any]) -> None:
    calls = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        @mark
        def doubled(self) -> list[Any]:
            calls.append(1)
            return [(self.weight * 2).detach(), float(self.weight.sum())]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made, number = self.doubled()
            return self.weight * x + made * number

    model = Model()
    compiled = flashover.compile(model, fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert len(calls) == 1


def test_a_constant_function_that_meets_a_traced_tensor() -> None:
    box: list[Any] = []

    @flashover.assume_constant_result
    def total() -> float:
        return float(box[0].sum())

    @flashover.compile
    def f(x: torch.Tensor) -> torch.Tensor:
        box[:] = [x + 1]
        return x * total()

    assert torch.equal(f(torch.ones(2)), torch.full((2,), 4.0))
    assert torch.equal(f(torch.zeros(2)), torch.zeros(2))


def test_the_words_of_a_break_are_in_the_error() -> None:
    @torch.compiler.disable(reason="it talks to a server")
    def asks(x: torch.Tensor) -> torch.Tensor:
        return x

    def breaks(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break(msg="by hand")
        return x

    for function, words in ((lambda x: asks(x), "it talks to a server"), (breaks, "by hand")):
        with pytest.raises(flashover.exc.Unsupported, match=words):
            flashover.compile(function, fullgraph=True)(torch.ones(2))
