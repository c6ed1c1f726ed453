"""Sizes and numbers that change, in the graphs that backends of others get: torch.compile itself is the judge of the
graphs, eager of what they compute."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import flashover


class Recorder:
    """A backend that runs the graph as it is."""

    def __init__(self) -> None:
        self.modules: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        module.graph.lint()
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        assert [type(n.meta["example_value"]) is torch.SymInt for n in placeholders] == [
            type(e) is torch.SymInt for e in examples
        ]
        self.modules.append(module)
        return module.forward

    def texts(self) -> list[list[str]]:
        """Without the placeholders of symbols (torch.compile may have several for one), and without their names."""
        nodes = [[n for n in m.graph.nodes if n.op != "output"] for m in self.modules]
        return [[re.sub(r"\b[sz]u?f?\d+", "s", self.text(n)) for n in g if not n.name.startswith("s")] for g in nodes]

    @staticmethod
    def text(n: torch.fx.Node) -> str:
        target = n.target if isinstance(n.target, str) else n.target.__name__  # type: ignore[union-attr]
        value = n.meta["example_value"]
        return f"{n.op} {target} {tuple(value.shape) if isinstance(value, torch.Tensor) else value}"


def views(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0] * 2, -1).sum(1) + y.shape[1] + y.sum()


def heads(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b, c = x.size()
    return x.reshape(b, 2, c // 2).transpose(1, 2).flatten() * len(y)


def sliced(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y])[: x.shape[0]] + torch.arange(x.shape[1])


def padded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 16 - x.shape[-1])).sum() + torch.zeros(y.shape[0] + 1, 3)


PROGRAMS = [views, heads, sliced, padded]
SIZES = [((4, 6), (5, 6)), ((8, 10), (3, 10)), ((2, 4), (7, 4)), ((2, 2), (7, 2)), ((1, 4), (1, 4)), ((6, 8), (6, 8))]


def called(run: Callable[..., Any], sizes: Any) -> list[torch.Tensor]:
    out = []
    for x, y in sizes:
        torch.manual_seed(0)
        given = torch.randn(x, requires_grad=True), torch.randn(y, requires_grad=True)
        result = run(*given)
        result.sum().backward()
        out += [result.detach(), *(t.grad for t in given if t.grad is not None)]
    return out


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("program", PROGRAMS)
def test_graphs_are_torch_compiles(program: Callable[..., Any], dynamic: bool | None) -> None:
    torch._dynamo.reset()
    ours, theirs = Recorder(), Recorder()
    first = SIZES[:3]
    got = called(flashover.compile(program, backend=ours, dynamic=dynamic, fullgraph=True), first)
    called(torch.compile(program, backend=theirs, dynamic=dynamic, fullgraph=True), first)
    torch.testing.assert_close(got, called(program, first))
    assert len(ours.modules) == len(theirs.modules)
    assert ours.texts() == theirs.texts()


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_backends_of_torchs(program: Callable[..., Any], backend: str) -> None:
    """Sizes of one element among them, for which torch.compile's symbols do not stand."""
    compiled = flashover.compile(program, backend=backend, dynamic=True)
    torch.testing.assert_close(called(compiled, SIZES + SIZES), called(program, SIZES + SIZES))


def test_numbers() -> None:
    """An int is a placeholder, a float one that is a tensor."""

    def f(x: torch.Tensor, n: int, scale: float) -> torch.Tensor:
        return x * n + x.new_ones(n, 1) * scale

    torch._dynamo.reset()
    ours, theirs = Recorder(), Recorder()
    calls = [(3, 0.5), (4, 1.5), (5, 2.5), (9, -1.0)]
    mine, other = flashover.compile(f, backend=ours), torch.compile(f, backend=theirs)
    for n, scale in calls:
        x = torch.randn(2)
        torch.testing.assert_close(mine(x, n, scale), f(x, n, scale))
        other(x, n, scale)
    assert len(ours.modules) == len(theirs.modules) == 2
    assert sorted(ours.texts()[1]) == sorted(theirs.texts()[1])
    kinds = [{type(n.meta["example_value"]) for n in m.graph.nodes if n.op == "placeholder"} for m in ours.modules]
    assert torch.SymInt in kinds[1] and torch.SymInt not in kinds[0]


def test_what_a_backend_asks_of_sizes_holds() -> None:
    """It may look at a size: then what it made serves such sizes alone."""
    seen = []

    def particular(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        if examples[0] > 4:
            seen.append("large")
            return lambda *given: (given[-1] * 2 + 1,)
        rows = int(examples[0])
        seen.append(str(rows))
        return lambda *given: (given[-1] * 2 + torch.ones(rows, 1),)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    compiled = flashover.compile(f, backend=particular, dynamic=True)
    for rows in (3, 2, 5, 6, 4, 9, 3, 2):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), f(x))
    assert seen == ["3", "2", "large", "4"]


def test_equal_sizes_by_chance_stay_apart() -> None:
    ours = Recorder()
    compiled = flashover.compile(lambda x, y: (x + 1, y.sum(0)), backend=ours, dynamic=True)
    for a, b in ((4, 4), (5, 7)):
        x, y = torch.randn(a), torch.randn(b, 3)
        torch.testing.assert_close(compiled(x, y), (x + 1, y.sum(0)))
    assert len(ours.modules) == 1


def test_strides() -> None:
    """Of views, and of transposed tensors."""
    ours = Recorder()
    compiled = flashover.compile(lambda x: x.t() * x.stride(0) + x.storage_offset(), backend="aot_eager", dynamic=True)
    also = flashover.compile(lambda x: x.t() * x.stride(0), backend=ours, dynamic=True)
    for x in (
        torch.randn(3, 4),
        torch.randn(5, 6),
        torch.randn(6, 5).t(),
        torch.randn(9, 7)[2:5],
        torch.randn(4, 9)[:, 2:],
    ):
        torch.testing.assert_close(compiled(x), x.t() * x.stride(0) + x.storage_offset())
        torch.testing.assert_close(also(x), x.t() * x.stride(0))


def test_settings_that_fix_numbers_and_parameters() -> None:
    x = torch.ones(2)
    for settings, dynamic, versions in (({}, None, 2), ({"specialize_int": True}, None, 4), ({}, False, 4)):
        ours = Recorder()
        with torch._dynamo.config.patch(**settings):
            compiled = flashover.compile(lambda x, n: x + n, backend=ours, dynamic=dynamic)
            for n in (3, 4, 5, 6):
                assert torch.equal(compiled(x, n), x + n)
        assert len(ours.modules) == versions
    for fixed, versions in ((True, 4), (False, 2)):
        ours = Recorder()
        with torch._dynamo.config.patch(force_parameter_static_shapes=fixed):
            compiled = flashover.compile(lambda w: w * 2, backend=ours)
            for n in (3, 4, 5, 6):
                compiled(torch.nn.Parameter(torch.ones(n)))
        assert len(ours.modules) == versions


def test_no_graph_without_operators() -> None:
    ours = Recorder()
    x = torch.ones(3)
    assert flashover.compile(lambda x: (x, 1), backend=ours)(x)[0] is x
    assert flashover.compile(lambda x: x.shape[0] + 1, backend=ours, dynamic=True)(x) == 4
    assert ours.modules == []


def test_a_float_that_a_backend_needs_the_value_of() -> None:
    """AOTAutograd says so by an exception that torch.compile knows."""

    def f(x: torch.Tensor, s: float) -> torch.Tensor:
        return torch.arange(x.shape[0], dtype=x.dtype) * s + torch.where(x > s, x, s).sum()

    compiled = flashover.compile(f, backend="aot_eager")
    for n, s in ((3, 0.5), (4, 1.5), (5, 1.5), (5, 2.5)):
        x = torch.arange(float(n))
        torch.testing.assert_close(compiled(x, s), f(x, s))


def test_recurrent_networks() -> None:
    """AOTAutograd fails on them: torch.compile hands them to no backend."""
    torch.manual_seed(0)
    model, x = torch.nn.LSTM(3, 4), torch.randn(5, 2, 3)
    torch.testing.assert_close(flashover.compile(model, backend="aot_eager")(x)[0], model(x)[0])
    with torch._dynamo.config.patch(allow_rnn=True):
        ours = Recorder()
        torch.testing.assert_close(flashover.compile(model, backend=ours, fullgraph=True)(x)[0], model(x)[0])
        assert len(ours.modules) == 1
