"""Generators, also those that compiled calls hand out: the parts of their bodies between two yields are compiled."""

from __future__ import annotations

import contextlib
import gc
import inspect
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from comparing import same
from torch.utils.data import DataLoader, TensorDataset

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


# ---- those that a compiled call hands out


def consume(g: Any) -> Any:
    assert inspect.isgenerator(g) and isinstance(g, types.GeneratorType | Generator)
    return list(g)


def talk(x: torch.Tensor) -> Generator[Any, Any, Any]:
    total = x.sin() + 1
    try:
        while True:
            try:
                got = yield total.cos() * 2
            except KeyError as e:
                LOG.append(repr(e))
                got = x * 3
            if got is None:
                return (total * 2).tanh()
            total = total + got.exp()
    finally:
        LOG.append((total - 1).sum())


def converse(g: Any) -> Any:
    out = [next(g), g.send(torch.ones(4)), g.throw(KeyError("k")), g.send(torch.zeros(4))]
    try:
        next(g)
    except StopIteration as e:
        out.append(e.value)
    return out, next(g, "over"), g.gi_frame is None


def delegate(x: torch.Tensor) -> Generator[Any, Any, Any]:
    value = yield from talk(x)
    yield value.sin() * 2 + 1


def hand_over(g: Any) -> Any:
    return [next(g), g.send(torch.ones(4)), g.throw(KeyError("k")), next(g), *g]


def close_early(g: Any) -> Any:
    return next(g), g.close(), list(g)


def drop(g: Any) -> Any:
    out, there = next(g), weakref.ref(g)
    del g
    return out, there() is None


def is_left_in_a_cycle(g: Any) -> Any:
    out, there, cycle = next(g), weakref.ref(g), [g]
    cycle.append(cycle)
    del g, cycle
    gc.collect()
    return out, there() is None


def never_started(g: Any) -> Any:
    with pytest.raises(TypeError, match="just-started"):
        g.send(1)
    return g.close(), list(g)


def fails(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x * 2 + 1
    y = (x * 2).sin()
    LOG.append(y)
    raise ValueError(f"after {len(LOG)}")


def see_it_fail(g: Any) -> Any:
    out = [next(g)]
    with pytest.raises(ValueError, match="after 1") as e:
        next(g)
    return out, [f.lineno for f in traceback.extract_tb(e.value.__traceback__)][1:], list(g)


def stops(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x.sin() * 2
    raise StopIteration


def see_it_stop(g: Any) -> Any:
    out = [next(g)]
    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        next(g)
    return out


def itself(x: torch.Tensor) -> Iterator[Any]:
    me = yield x.sin() + 1
    try:
        next(me)
    except ValueError as e:
        yield str(e), x.cos() * 2


def enter_again(g: Any) -> Any:
    return next(g), g.send(g)


def in_threads(g: Any) -> Any:
    out: list[Any] = []
    for _ in range(3):
        t = threading.Thread(target=lambda: out.append(next(g)))
        t.start()
        t.join()
    return out


class Streams(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for layer in self.layers:
            x = layer(x).relu() + 1
            yield x


STREAMS = Streams()


def expression(x: torch.Tensor) -> Iterator[torch.Tensor]:
    y = x.sin() + 1
    return (y.cos() * i + 2 for i in range(4))


HANDED_OUT: list[tuple[Callable[..., Any], Callable[[Any], Any], int]] = [
    (lambda x: waves(x, 4), consume, 2),
    (broken_waves, consume, 2),
    (STREAMS, consume, 2),
    (STREAMS.forward, consume, 2),
    (expression, consume, 2),
    (talk, converse, 3),
    (delegate, hand_over, 3),
    (talk, close_early, 1),
    (talk, drop, 1),
    (talk, is_left_in_a_cycle, 1),
    (talk, never_started, 0),
    (fails, see_it_fail, 1),
    (stops, see_it_stop, 1),
    (itself, enter_again, 1),
    (broken_waves, in_threads, 2),
    (contextlib.contextmanager(logged.__wrapped__), lambda c: c.__enter__(), 0),  # type: ignore[attr-defined]
]


@pytest.mark.parametrize(("f", "use", "graphs"), HANDED_OUT)
def test_a_generator_that_is_handed_out_is_compiled(
    f: Callable[..., Any], use: Callable[[Any], Any], graphs: int
) -> None:
    flashover.reset()
    fast = flashover.compile(f)
    before = flashover.compile_stats()
    for i in range(3):
        x = torch.linspace(0, 1, 4) + i
        LOG.clear()
        want, said = use(f(x)), list(LOG)
        LOG.clear()
        same((use(fast(x)), LOG), (want, said))
        if i == 0:
            first = flashover.compile_stats()["graphs"] - before["graphs"]
            assert first >= graphs
    assert flashover.compile_stats()["graphs"] - before["graphs"] == first


def test_a_generator_of_a_compiled_call_looks_like_any_other() -> None:
    fast = flashover.compile(talk)
    g, plain = fast(torch.ones(4)), talk(torch.ones(4))
    assert repr(g).startswith("<generator object talk at") and g.__qualname__ == "talk"
    assert inspect.getgeneratorstate(g) == inspect.GEN_CREATED and g.gi_code is plain.gi_code
    next(g), next(plain)
    assert g.gi_frame.f_lineno == plain.gi_frame.f_lineno and list(g.gi_frame.f_locals) == list(plain.gi_frame.f_locals)
    g.__name__ = "other"
    assert g.__name__ == "other" and not g.gi_running and g.gi_yieldfrom is None
    assert [m for m in dir(g) if not m.startswith("__")] == [m for m in dir(plain) if not m.startswith("__")]
    with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
        __import__("copy").copy(g)
    gone = weakref.ref(g)
    del g
    assert gone() is None


def test_a_module_and_the_generator_it_keeps_can_be_collected() -> None:
    model = Streams()
    model.fast = flashover.compile(model.forward)  # type: ignore[assignment]
    model.stream = model.fast(torch.ones(2, 4))  # type: ignore[assignment]
    next(model.stream)  # type: ignore[call-overload]
    gone = weakref.ref(model)
    del model
    gc.collect()
    gc.collect()
    assert gone() is None


def test_a_compiled_generator_function_inside_of_compiled_code() -> None:
    inner = flashover.compile(waves)

    def outer(x: torch.Tensor) -> Any:
        return sum(v * 2 for v in inner(x, 3))

    x = torch.ones(4)
    g = inner(x, 3)
    next(g)
    again = inner(x, 3)
    next(again)
    for _ in range(2):
        same(flashover.compile(outer)(x), outer(x))
    same(flashover.compile(lambda it: [v + 1 for v in it])(g), [v + 1 for v in again])


def test_fullgraph_asks_for_more_than_a_generator() -> None:
    with pytest.raises(flashover.exc.Unsupported, match="generator"):
        flashover.compile(waves, fullgraph=True)(torch.ones(4), 2)


def test_explain_runs_a_generator() -> None:
    e = flashover.explain(waves)(torch.ones(4), 3)
    assert len(e.graphs) >= 2 and not e.declines


def test_coroutines_and_async_generators_are_what_they_were() -> None:
    async def produce(x: torch.Tensor) -> Any:
        for i in range(2):
            yield x.sin() * i

    async def total(x: torch.Tensor) -> Any:
        out = x
        async for v in produce(x):
            out = out + v
        return out * 2

    def run(c: Any) -> Any:
        try:
            c.send(None)
        except StopIteration as e:
            return e.value

    x = torch.linspace(0, 1, 4)
    for _ in range(2):
        same(run(flashover.compile(total)(x)), run(total(x)))
        assert inspect.isasyncgen(flashover.compile(produce)(x))


def test_a_generator_that_goes_with_its_trace_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """The trace ends at a number of data while a loader's generators wait in C code."""

    def program(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for (part,) in DataLoader(TensorDataset(x), batch_size=4):
            total = total + part.sum() * range(5)[int(part.abs().max().item()) % 3]
        return total

    x = torch.linspace(-3, 3, 24).reshape(8, 3)
    same(flashover.compile(program)(x), program(x))
    assert "ignored" not in capfd.readouterr().err
