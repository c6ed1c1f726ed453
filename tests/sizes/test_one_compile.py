"""One compile serves every size: programs with dynamic=True against eager, at sizes that were not traced."""

from __future__ import annotations

import collections

import pytest
import torch
from comparing import differ
from sized_programs import PROGRAMS, SIZES

import flashover


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_serves_every_size(name: str) -> None:
    f, shape = PROGRAMS[name]
    compiled = flashover.compile(f, dynamic=True, fullgraph=True, options={"recompile_limit": 64})
    flashover.reset()
    before = flashover.compile_stats()["graphs"]
    for n in SIZES:
        x = torch.randn(shape(n))
        assert (wrong := differ(compiled(x), f(x), rtol=1e-4, atol=1e-4)) == "", f"size {n}: {wrong}"
    made = flashover.compile_stats()["graphs"] - before
    assert made == 1, f"compiled {made} times"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_size_that_changed_is_a_symbol(name: str) -> None:
    """Without being asked: the first compile is for its size alone, the second for all."""
    f, shape = PROGRAMS[name]
    compiled = flashover.compile(f, fullgraph=True, options={"recompile_limit": 64})
    flashover.reset()
    before = flashover.compile_stats()["graphs"]
    for n in SIZES:
        x = torch.randn(shape(n))
        assert (wrong := differ(compiled(x), f(x), rtol=1e-4, atol=1e-4)) == "", f"size {n}: {wrong}"
    made = flashover.compile_stats()["graphs"] - before
    assert made <= 2, f"compiled {made} times"


def test_only_what_changed_is_a_symbol() -> None:
    compiled = flashover.compile(lambda x: x * 2)
    before = flashover.compile_stats()["graphs"]
    for shape in [(4, 8), (5, 8), (6, 8), (7, 8)]:
        compiled(torch.randn(shape))
    assert flashover.compile_stats()["graphs"] - before == 2
    compiled(torch.randn(4, 9))
    compiled(torch.randn(5, 10))
    assert flashover.compile_stats()["graphs"] - before == 3


def test_dynamic_false_compiles_each_size() -> None:
    compiled = flashover.compile(lambda x: x * 2, dynamic=False)
    before = flashover.compile_stats()["graphs"]
    for n in range(3, 7):
        compiled(torch.randn(n))
    assert flashover.compile_stats()["graphs"] - before == 4


def test_a_marked_size_is_a_symbol_from_the_first_compile_on() -> None:
    compiled = flashover.compile(lambda x: x * 2)
    before = flashover.compile_stats()["graphs"]
    x = torch.randn(4, 8)
    torch._dynamo.mark_dynamic(x, 0)
    compiled(x)
    for n in range(5, 9):
        compiled(torch.randn(n, 8))
    assert flashover.compile_stats()["graphs"] - before == 1


def test_after_a_graph_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        print(end="")
        return x.flatten() * 2

    compiled = flashover.compile(f)
    before = flashover.compile_stats()["graphs"]
    for n in range(3, 9):
        x = torch.randn(n, 4)
        assert torch.allclose(compiled(x), f(x))
    assert flashover.compile_stats()["graphs"] - before == 4


class Cache:
    """Counts what it has seen, as transformers' caches do."""

    length: int = 0


class Output(collections.OrderedDict[str, object]):
    def __init__(self, value: torch.Tensor, cache: Cache) -> None:
        super().__init__()
        self["value"] = value
        super().__setitem__("cache", cache)


def with_output(x: torch.Tensor) -> torch.Tensor:
    cache = Cache()
    cache.length += x.shape[0]
    output = Output(x * 2, cache)
    listed = [None]
    listed[0] = cache
    return output["value"] + output["cache"].length + listed[0].length


def test_a_container_does_not_look_at_the_sizes_in_what_it_holds() -> None:
    compiled = flashover.compile(with_output, dynamic=True, fullgraph=True)
    before = flashover.compile_stats()["frames"]
    for n in (5, 2, 17, 9):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), with_output(x))
    assert flashover.compile_stats()["frames"] - before == 1


def test_a_batch_of_another_input_divides() -> None:
    """As decoders view what encoders made: what is left of one input by the batch of another."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.view(y.shape[0], -1, 2, 4).transpose(1, 2) + y[:, :, None, None]

    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for batch, length in ((2, 3), (3, 5), (4, 4), (1, 7), (5, 1)):
        x, y = torch.randn(batch, length, 8), torch.randn(batch, 2)
        assert differ(compiled(x, y), f(x, y)) == "", f"{batch} of {length}"
    assert flashover.compile_stats()["graphs"] - before == 2
    x, y = torch.randn(2, 6, 8), torch.randn(4, 2)
    assert differ(compiled(x, y), f(x, y)) == ""


def test_operator_by_operator() -> None:
    """Backend "eager": the graph of one compile serves all sizes there, too, sizes from data and gradients included."""
    weight = torch.randn(4, 4, requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        chosen = x[x > 0]
        return (x @ weight).sin()[: x.shape[0] // 2 + 1].sum(0) * x.shape[0] + chosen.sum()

    compiled = flashover.compile(f, backend="eager", fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for n in (3, 5, 2, 8, 1):
        x = torch.randn(n, 4)
        got, want = compiled(x), f(x)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(torch.autograd.grad(got.sum(), weight), torch.autograd.grad(want.sum(), weight))
    assert flashover.compile_stats()["graphs"] - before <= 2
