"""Graph breaks: every program gives what it gives uncompiled, and goes on compiled after the break."""

from __future__ import annotations

import asyncio
import copy
import io
import itertools
import warnings
import weakref
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import break_programs
import fuzz_breaks
import pytest
import torch
from break_programs import PROGRAMS
from comparing import differ, same

import flashover


def lines_of(e: BaseException) -> list[tuple[str, int]]:
    out, tb = [], e.__traceback__
    while tb is not None:
        if "break_programs" in tb.tb_frame.f_code.co_filename:
            out.append((tb.tb_frame.f_code.co_name, tb.tb_lineno))
        tb = tb.tb_next
    return out


def outcome(f: Any, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    x, y = x.clone(), y.clone()
    break_programs.LOG.clear()
    said = io.StringIO()
    with redirect_stdout(said):
        try:
            value = ("value", copy.copy(f(x, y)))
        except Exception as e:
            value = ("raised", type(e).__name__, str(e), lines_of(e))
    return {
        "result": value,
        "said": said.getvalue(),
        "x": x,
        "y": y,
        "log": list(break_programs.LOG),
        "grad": torch.is_grad_enabled(),
    }


NEAR: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5, "floats": 1e-4}


def inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(4, 4, generator=g), torch.randn(4, 4, generator=g)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_same_as_eager(program: Any) -> None:
    # (Where a machine has no 16-bit arithmetic, products of 16-bit floats are rounded once.)
    options = {"strict_numerics": True} if program is break_programs.autocast_block else None
    compiled = flashover.compile(program, options=options)
    with torch.no_grad():
        for seed in (0, 1, 2, 0):
            x, y = inputs(seed)
            expected, got = outcome(program, x, y), outcome(compiled, x, y)
            what = differ(got, expected, **NEAR)
            assert not what, f"seed {seed}: {what}\n{expected}\n{got}"


def test_breaks_are_counted_and_explained() -> None:
    def f(x):
        x = x + 1
        print(end="")
        x = x * 2
        flashover.graph_break()
        return x.sin()

    x = torch.randn(3)
    before = flashover.compile_stats()
    compiled = flashover.compile(f, backend="eager")
    assert torch.equal(compiled(x), f(x))
    made = {k: v - before[k] for k, v in flashover.compile_stats().items()}
    assert (made["graphs"], made["graph_breaks"]) == (3, 2)
    assert made["recompiles"] == 0
    assert torch.equal(compiled(x), f(x))
    assert flashover.compile_stats()["graphs"] - before["graphs"] == 3
    report = flashover.explain(f, backend="eager")(x).to_dict()
    assert report["graph_break_count"] == 2
    assert report["graph_count"] == 3
    reasons = {b["reason"]: b["where"] for b in report["breaks"]}
    line = f.__code__.co_firstlineno
    assert reasons["call of print"].endswith(f"test_breaks.py:{line + 2}")
    assert reasons["graph_break()"].endswith(f"test_breaks.py:{line + 4}")


def test_loops_do_not_multiply_entries() -> None:
    def f(x, n):
        for _ in range(n):
            x = x.sin() + 1
            print(end="")
        return x

    compiled = flashover.compile(f, backend="eager")
    x = torch.randn(3)
    assert torch.allclose(compiled(x, 50), f(x, 50))
    assert len(compiled.entries()) <= 4


def test_fullgraph_raises_where_the_break_is() -> None:
    def f(x):
        x = x + 1
        print("no")
        return x

    with pytest.raises(flashover.exc.Unsupported, match="print") as e:
        flashover.compile(f, fullgraph=True)(torch.ones(2))
    assert e.value.where.endswith(f"test_breaks.py:{f.__code__.co_firstlineno + 2}")


def test_controls() -> None:
    calls = []

    @flashover.assume_constant_result
    def constant():
        calls.append("constant")
        return 3

    @flashover.allow_in_graph
    def allowed(x):
        calls.append("allowed")
        return x.sin()

    @flashover.disallow_in_graph
    def disallowed(x):
        calls.append("disallowed")
        return x.cos()

    def f(x):
        return disallowed(allowed(x) * constant()) + 1

    compiled = flashover.compile(f, backend="eager")
    x = torch.randn(3)
    want = (x.sin() * 3).cos() + 1
    for _ in range(3):
        assert torch.allclose(compiled(x), want)
    assert calls.count("disallowed") == 3
    assert calls.count("constant") < 3 + 1
    assert len([e for e in compiled.entries() if e["breaks"]]) == 1

    flashover.disallow_in_graph(torch.Tensor.tan)
    try:
        compiled = flashover.compile(lambda x: x.tan() + 1, backend="eager")
        assert torch.allclose(compiled(x), x.tan() + 1)
        assert any("not to be part" in e["reason"] for e in compiled.entries())
    finally:
        flashover.allow_in_graph(torch.Tensor.tan)  # the mark is the process's: other tests call it, too
    compiled = flashover.compile(lambda x: x.tan() + 1, backend="eager")
    assert torch.allclose(compiled(x), x.tan() + 1) and not any(e["breaks"] for e in compiled.entries())

    marked = torch.compiler.disable(lambda x: x * 2)
    compiled = flashover.compile(lambda x: marked(x + 1) - 1, backend="eager")
    assert torch.allclose(compiled(x), (x + 1) * 2 - 1)
    assert any(e["breaks"] for e in compiled.entries())

    cached = flashover.compile(lambda x: x + 1, backend="eager")
    only = flashover.run(cached)
    assert torch.allclose(only(x), x + 1)
    assert not cached.entries()
    cached(x)
    assert torch.allclose(only(x), x + 1)
    assert cached.entries()[0]["hits"] == 2


def test_references_are_given_back() -> None:
    import gc

    class Box:
        pass

    def f(x, b):
        y = [x + 1, b]
        print(end="")
        z = {"k": y[0] * 2, "b": y[1]}
        flashover.graph_break()
        return z["k"]

    compiled = flashover.compile(f, backend="eager")
    b, x = Box(), torch.randn(3)
    refs = [weakref.ref(b), weakref.ref(x)]
    for _ in range(3):
        compiled(x, b)
    del b, x
    gc.collect()
    assert [r() for r in refs] == [None, None]
    inner = weakref.ref(f)
    del compiled, f
    gc.collect()
    assert inner() is None


@pytest.mark.timeout(200)
@pytest.mark.parametrize("first", range(0, 60, 12))
def test_random_programs(first: int) -> None:
    wrong = [w for w in (fuzz_breaks.check(seed) for seed in range(first, first + 12)) if w]
    assert not wrong, wrong[0]


def test_many_modules_run_the_same_code() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.linear(x)
            flashover.graph_break()
            return x.relu() + 1

    class Stack(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(Layer() for _ in range(12))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x) * 0.5
            return x

    m = Stack().eval()
    x = torch.randn(2, 3)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = flashover.compile(m, backend="eager")
        for _ in range(3):
            assert torch.allclose(compiled(x), m(x))
        entries = compiled._flashover_callable.entries()
    assert sum(e["ops"] for e in entries) >= 12 * 4
    assert not [e for e in entries if not e["compiled"] and not e["trivial"]]


def test_generators_that_die_unfinished_while_captured() -> None:
    def f(x):
        found = any(v > 1 for v in range(5))
        for v in (x + i for i in range(5)):
            x = v
            break
        print(end="")
        found = found and all(v < 1 for v in range(5))
        return x + found

    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(flashover.compile(f, backend="eager")(x), f(x))


def test_break_inside_inference_mode():
    log: list[float] = []

    def f(x, twice):
        y = x * 2
        with torch.inference_mode():
            z = y.sin()
            log.append(float(z.sum()))
            torch._dynamo.graph_break()
            with torch.inference_mode(twice):
                z = z.cos() + y
                log.append(float(z.sum()))
                torch._dynamo.graph_break()
            z = z + 1
            on = torch.is_inference_mode_enabled()
        return z * 2, on, torch.is_inference_mode_enabled(), y * 3

    flashover.reset()
    fast = flashover.compile(f)
    before = flashover.compile_stats()["frames"]
    x = torch.linspace(0, 1, 6).requires_grad_()
    for twice in (True, True, False):
        got, wanted = fast(x, twice), f(x, twice)
        for a, b in zip(got, wanted, strict=True):
            if torch.is_tensor(a):
                torch.testing.assert_close(a, b)
                assert a.requires_grad == b.requires_grad
            else:
                assert a == b
        assert log[:2] == pytest.approx(log[2:])
        log.clear()
    assert flashover.compile_stats()["frames"] - before >= 3
    assert not torch.is_inference_mode_enabled()


def test_coroutines_that_are_handed_on_do_not_compile_each_time():
    async def double(x):
        await asyncio.sleep(0)
        return x * 2

    async def together(x):
        return sum(await asyncio.gather(*[double(x + i) for i in range(4)]))

    def f(x):
        return asyncio.run(together(x)) + 1

    flashover.reset()
    fast = flashover.compile(f)
    before = flashover.compile_stats()["recompiles"]
    x = torch.linspace(0, 1, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(12):
            torch.testing.assert_close(fast(x), f(x))
    assert flashover.compile_stats()["recompiles"] - before <= 6


class Counting(itertools.count):  # type: ignore[misc]
    pass


ITERATORS = {
    "repeat": lambda: itertools.repeat(1, 4),
    "count": lambda: itertools.count(1),
    "a class of its own": lambda: Counting(1),
    "cycle": lambda: itertools.cycle([1, 2, 3]),
    "chain": lambda: itertools.chain([1, 2], [3, 4]),
    "islice": lambda: itertools.islice([1, 2, 3, 4, 5], 1, 5),
    "accumulate": lambda: itertools.accumulate([1, 2, 3, 4]),
    "zip_longest": lambda: (b for _, b in itertools.zip_longest([1], [1, 2, 3, 4])),
    "list": lambda: iter([1, 2, 3, 4]),
    "generator": lambda: (i for i in range(4)),
}


@pytest.mark.parametrize("make", ITERATORS.values(), ids=ITERATORS)
def test_iterators_that_are_advanced_go_on_where_they_are(make: Callable[[], Any]) -> None:
    """Their position is no attribute: a trace must neither advance them nor take one position for another."""

    def across_breaks(x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        seen = []
        for i in make():
            x = x + i
            x.tolist()
            seen.append(i)
            if len(seen) > 2:
                break
        return x, seen

    def given(x: torch.Tensor, it: Any) -> tuple[torch.Tensor, Any]:
        return x + next(it), it.__next__()

    fast, x = flashover.compile(across_breaks, backend="eager"), torch.ones(2)
    for _ in range(3):
        same(fast(x), across_breaks(x), **NEAR)
    fast, mine, other = flashover.compile(given, backend="eager"), make(), make()
    for _ in range(2):
        same(fast(x, mine), given(x, other), **NEAR)


def test_a_waiting_frame_keeps_its_code() -> None:
    """A call may give the function that made it other code (a crash: the frame was made again from that)."""

    def make(change: Callable[[Callable[..., Any]], None]) -> Callable[..., Any]:
        def f(x: torch.Tensor, a: int = 1, *rest: int, b: int = 2) -> torch.Tensor:
            y = x * 2
            for k in range(3):
                y = y + k
                change(f)
                y = y * a + b
            return y

        return f

    def other(x: torch.Tensor) -> torch.Tensor:
        return x * 6

    @flashover.disable
    def change(f: Callable[..., Any]) -> None:
        f.__code__ = code

    x = torch.ones(2)
    plain, program = make(change), make(change)
    code = (lambda x: (x * 6, change, code)[0]).__code__  # with as many free variables: Python insists
    fast = flashover.compile(program, backend="eager")
    for _ in range(3):
        same(fast(x), plain(x), **NEAR)
    same(fast(x), other(x), **NEAR)


def test_attributes_of_new_objects_at_an_old_address() -> None:
    class Box:
        def __init__(self, t: torch.Tensor) -> None:
            self.t = t
            self.n = 0

        def step(self, t: torch.Tensor) -> torch.Tensor:
            self.n += 1
            return t + self.t

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
        box = Box(y)
        if y.sum() > -1e9:
            x = box.step(x)
        return x * 2, box.n

    fast = flashover.compile(program, backend="eager")
    for k in range(6):
        x, y = torch.full((3,), k + 1.0), torch.full((3,), k * 10.0)
        ours, theirs = fast(x, y), program(x, y)
        assert torch.equal(ours[0], theirs[0])
        assert ours[1] == theirs[1]


def test_a_kernel_that_reads_data_is_a_break_and_no_error_of_the_program() -> None:
    def f(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        try:
            y = torch.zeros_like(x).index_reduce(0, index, x * 2, "mean", include_self=False)
        except RuntimeError:
            y = x * 0 - 1
        return y + torch.tensor([x[0, 0], x[1, 0]])

    x, index = torch.randn(4, 2), torch.tensor([0, 1, 1, 3])
    before = flashover.compile_stats()["graphs"]
    fast = flashover.compile(f)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x, index), f(x, index))
    assert flashover.compile_stats()["graphs"] > before


def test_lines_of_a_traceback_that_lives_over_a_break_have_locals() -> None:
    """Debuggers and pytest read them; a frame with free variables has a closure to take them from, or cells."""

    def f(x: torch.Tensor) -> tuple[ValueError, torch.Tensor]:
        def failing() -> None:
            if x.dim() > 0:
                raise ValueError("no")

        try:
            failing()
        except ValueError as e:
            torch._dynamo.graph_break()
            return e, x * 2
        raise AssertionError

    fast = flashover.compile(f)
    for _ in range(2):
        names, tb = [], fast(torch.ones(3))[0].__traceback__
        while tb is not None:
            assert isinstance(tb.tb_frame.f_locals, dict) or tb.tb_frame.f_locals is not None
            dict(tb.tb_frame.f_locals)
            names.append((tb.tb_frame.f_code.co_name, tb.tb_lineno))
            tb = tb.tb_next
        first = f.__code__.co_firstlineno
        assert ("failing", first + 3) in names
