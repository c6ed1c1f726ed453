"""Generators that live across graph breaks: the parts of their bodies between two yields are compiled, too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch

import flashover

LOG: list[Any] = []


def waves(x: torch.Tensor, n: int) -> Iterator[torch.Tensor]:
    for i in range(n):
        y = x * 2 + i
        yield y.sin().cos()
    LOG.append(n)


def broken_waves(x: torch.Tensor) -> Iterator[torch.Tensor]:
    for i in range(3):
        x = (x * 2).sin()
        flashover.graph_break()
        x = x.cos() + i
        yield x


@contextlib.contextmanager
def logged(x: torch.Tensor) -> Iterator[torch.Tensor]:
    LOG.append(y := x.sin() + 1)
    try:
        yield y
    except ValueError as e:
        LOG.append((str(e), y * 3))
    finally:
        LOG.append((y * 2).cos())


def a_loop(x: torch.Tensor) -> Any:
    out = 0
    for v in waves(x, 5):
        flashover.graph_break()
        out = out + v
    return out


def delegated(x: torch.Tensor) -> Any:
    def outer() -> Iterator[torch.Tensor]:
        yield from waves(x, 3)
        yield x.exp() * 2

    out = []
    for v in outer():
        flashover.graph_break()
        out.append(v + 1)
    return out


def a_context(x: torch.Tensor) -> Any:
    with logged(x) as y:
        z = y * 3
        flashover.graph_break()
        z = z.tanh()
    return z + 1


def a_context_that_swallows(x: torch.Tensor) -> Any:
    with logged(x) as y:
        z = y * 3
        flashover.graph_break()
        raise ValueError("no")
    return z + 1


def a_break_inside(x: torch.Tensor) -> Any:
    s = 0
    for v in broken_waves(x):
        s = s + v.exp()
    return s


def eaten_by_c(x: torch.Tensor) -> Any:
    return sum(broken_waves(x)), [v * 2 for v in broken_waves(x)], any(v.sum() > 1e9 for v in waves(x, 2))


def by_hand(x: torch.Tensor) -> Any:
    def echo() -> Generator[Any, Any, str]:
        v = x
        while True:
            got = yield v
            if got is None:
                return "done"
            v = (got * 2).sin() + x

    g = echo()
    a = next(g)
    flashover.graph_break()
    b = g.send(a)
    c = g.send(b + 1)
    try:
        g.send(None)
    except StopIteration as e:
        return a, b, c, e.value


def closed(x: torch.Tensor) -> Any:
    g = broken_waves(x)
    a = next(g)
    g.close()
    return a, list(g)


def thrown(x: torch.Tensor) -> Any:
    def careful() -> Generator[Any, Any, None]:
        for i in range(3):
            try:
                yield x * i + 1
            except KeyError:
                yield x.cos() * i

    g = careful()
    out = [next(g)]
    flashover.graph_break()
    out.append(next(g))
    out.append(g.throw(KeyError("k")))
    out.extend(g)
    return out


def raising(x: torch.Tensor) -> Any:
    def bad() -> Iterator[torch.Tensor]:
        yield x * 2
        y = x.exp()
        LOG.append(y)
        raise RuntimeError("at the end")

    out = []
    try:
        for v in bad():
            flashover.graph_break()
            out.append(v + 1)
    except RuntimeError as e:
        return out, str(e)


class Features(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(4))

    def features(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for layer in self.layers:
            x = layer(x).relu()
            yield x

    def forward(self, x: torch.Tensor) -> Any:
        o = 0
        for h in self.features(x):
            if h.sum() > 1e9:
                break
            o = o + h.mean()
        return o


def grad_mode(x: torch.Tensor) -> Any:
    def half() -> Iterator[torch.Tensor]:
        with torch.no_grad():
            yield x * 2 + 1
            yield x * 3 + 1
        yield x * 4 + 1

    out = []
    for v in half():
        flashover.graph_break()
        out.append((v.requires_grad, torch.is_grad_enabled(), v + 1))
    return out


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    elif isinstance(want, list | tuple):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same(g, w)
    else:
        assert got == want


PROGRAMS: list[tuple[Callable[..., Any], int]] = [  # with the graphs that it takes at least
    (a_loop, 4),
    (delegated, 4),
    (a_context, 4),
    (a_context_that_swallows, 2),
    (a_break_inside, 4),
    (eaten_by_c, 4),
    (by_hand, 2),
    (closed, 2),
    (thrown, 2),
    (raising, 2),
    (Features(), 4),
    (grad_mode, 2),
]


@pytest.mark.parametrize(("f", "graphs"), PROGRAMS, ids=[getattr(f, "__name__", "Features") for f, _ in PROGRAMS])
def test_a_generator_goes_on_compiled(f: Callable[..., Any], graphs: int) -> None:
    flashover.reset()
    fast = flashover.compile(f)
    before = flashover.compile_stats()["graphs"]
    for _ in range(3):
        x = torch.linspace(0, 1, 12).reshape(3, 4).requires_grad_()
        LOG.clear()
        want, said = f(x), list(LOG)
        LOG.clear()
        got = fast(x)
        same((got, LOG), (want, said))
        made = flashover.compile_stats()["graphs"] - before
        assert made >= graphs
