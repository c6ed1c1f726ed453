"""The option guard_filter_fn: what it gets, what it drops, and that whatever it drops, a call reads nothing amiss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import flashover


class Counter:
    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: torch.fx.GraphModule, examples: Any) -> Any:
        self.graphs += 1
        return module.forward


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


TABLE = {"n": 5}
number = 5


def reads_globals(x: torch.Tensor) -> torch.Tensor:
    return x + TABLE["n"] + number


def compiled(model: Any, keep: Any, **arguments: Any) -> tuple[Any, Counter]:
    counter = Counter()
    return flashover.compile(model, backend=counter, options={"guard_filter_fn": keep}, **arguments), counter


def test_what_it_gets() -> None:
    seen = []

    def keep(entries: Any) -> list[bool]:
        seen.extend(entries)
        return [True] * len(entries)

    model, x = Scaled(), torch.ones(2, 4)
    run, counter = compiled(model, keep)
    run(x)
    model.scale = 2
    assert torch.equal(run(x), model(x)) and counter.graphs == 2
    tensor = next(e for e in seen if e.name == "x")
    assert tensor.guard_type == "TENSOR_MATCH" and tensor.value is x and tensor.has_value and not tensor.is_global
    scale = next(e for e in seen if e.name == "self.scale")
    assert scale.guard_type == "CONSTANT_MATCH" and scale.value == 1
    assert scale.orig_guard.source.is_unspecialized_nn_module()
    assert not scale.orig_guard.source.is_unspecialized_builtin_nn_module()
    weight = next(e for e in seen if e.name == "self.linear.weight")
    assert weight.orig_guard.source.is_unspecialized_builtin_nn_module()
    assert weight.orig_guard.create_fn_name() == "TENSOR_MATCH" and "self.linear" in weight.orig_guard.name


def test_torchs_filters() -> None:
    x = torch.ones(2, 4)
    for keep, graphs in (
        (torch.compiler.skip_guard_on_all_nn_modules_unsafe, 1),
        (torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe, 2),
        (torch.compiler.skip_all_guards_unsafe, 1),
        (torch.compiler.keep_tensor_guards_unsafe, 1),
    ):
        model = Scaled()
        run, counter = compiled(model, keep)
        run(x)
        model.scale = 3
        run(x)
        assert counter.graphs == graphs
    run(torch.ones(3, 4))
    assert counter.graphs == 2  # tensors are looked at still


def test_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    def keep(entries: Any) -> list[bool]:
        names.extend(e.name for e in entries if e.is_global)
        return torch.compiler.skip_guard_on_globals_unsafe(entries)

    run, counter = compiled(reads_globals, keep)
    x = torch.zeros(2)
    assert torch.equal(run(x), x + 10)
    monkeypatch.setitem(TABLE, "n", 6)
    monkeypatch.setitem(globals(), "number", 7)
    assert torch.equal(run(x), x + 10) and counter.graphs == 1
    assert {"G['number']", "G['TABLE']", "G['TABLE']['n']"} <= set(names)


def test_it_must_answer_for_each() -> None:
    for keep in (lambda entries: [], lambda entries: [1] * len(entries)):
        with pytest.raises(AssertionError, match="guard_filter_fn"):
            compiled(lambda x: x + 1, keep)[0](torch.ones(2))

    def raising(entries: Any) -> list[bool]:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        compiled(lambda x: x + 1, raising)[0](torch.ones(2))


class Plain:
    def __init__(self, parts: Any) -> None:
        self.parts = parts


class Slotted:
    __slots__ = ("parts",)


@pytest.mark.parametrize("backend", ["flashover", "eager"])
def test_other_objects_are_not_taken_for_those_that_were_seen(backend: str) -> None:
    """Without any guard that may go, too: the way to a tensor, and its type, are looked at."""

    def f(thing: Any, n: Any) -> torch.Tensor:
        return thing.parts[1]["w"] * 2 + (1 if n == "one" else 2)

    def make(cls: Any, container: Any, w: Any) -> Any:
        thing = cls.__new__(cls)
        thing.parts = container
        return thing

    w = torch.ones(3)
    run = flashover.compile(
        f, backend=backend, options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}, dynamic=False
    )
    assert torch.equal(run(Plain([0, {"w": w}]), "one"), w * 2 + 1)
    assert torch.equal(run(Plain([0, {"w": w * 3}]), "two"), w * 6 + 1)  # as was asked for
    for other in (
        make(Slotted, [0, {"w": w}], w),
        Plain((0, {"w": w})),
        Plain([0, {"w": w.double()}]),
        Plain([0, {"w": torch.ones(4)}]),
        Plain([0, {"w": w, "v": 1}]),
        Plain({1: {"w": w}}),
    ):
        assert torch.equal(run(other, "one"), other.parts[1]["w"] * 2 + 1)
    for wrong in (Plain([0]), Plain(None), None, 3, Plain([0, {}])):
        with pytest.raises((IndexError, TypeError, AttributeError, KeyError)):
            run(wrong, "one")
