"""The language inside a capture: each program, compiled whole, gives eager's result, also on other inputs."""
# ruff: noqa: C408, C416, SIM222, UP031, UP045 - the old ways of writing things are under test, too

from __future__ import annotations

import bisect
import collections
import contextlib
import copy
import functools
import heapq
import inspect
import itertools
import logging
import math
import operator
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import object_programs
import pytest
import torch
import torch.nn.functional as F
from object_programs import Countdown, OwnError, Point, Slotted
from programs import Programs
from same_objects import same
from torch.utils import _pytree as pytree

import flashover

Tensor = torch.Tensor
PROGRAMS = program = Programs()
log = logging.getLogger("flashover.tests.language")


# ---------------------------------------------------------------------------------------------------------- functions


@program
def closure_counts(x: Tensor) -> Any:
    n = 0

    def add(y: Tensor) -> Tensor:
        nonlocal n
        n += 1
        return y + n

    return add(add(add(x))), n


@program
def closures_made_in_a_loop(x: Tensor) -> Tensor:
    fs = [lambda y, k=k: y * k for k in range(1, 4)]
    late = [lambda y: y + k for k in range(3)]  # noqa: B023
    for f in fs + late:
        x = f(x)
    return x


@program
def defaults_and_star_calls(x: Tensor) -> Any:
    def f(a: Tensor, /, b: float = 2.0, *rest: float, c: float, d: float = 4.0, **more: float) -> Tensor:
        return a * b + sum(rest) + c - d + sum(more.values())

    args, kwargs = (3.0, 1.0, 2.0), {"c": 5.0, "e": 6.0}
    return f(x, *args, **kwargs) + f(x, c=1) + f(*(x,), c=1.0, d=2.0)


@program
def recursion(x: Tensor) -> Tensor:
    def power(y: Tensor, n: int) -> Tensor:
        return torch.ones_like(y) if n == 0 else y * power(y, n - 1)

    return power(x, 5)


@program
def function_attributes(x: Tensor) -> Tensor:
    def f(y: Tensor) -> Tensor:
        f.calls += 1
        return y * f.calls

    f.calls = 0
    return f(x) + f(x)


@program
def lambda_default_of_mutable(x: Tensor) -> Any:
    def f(y: Tensor, seen: list[int] | None = None) -> list[int]:
        seen = [] if seen is None else seen
        seen.append(y.ndim)
        return seen

    return f(x), f(x, [1]), x.sum()


@program
def unpacking(x: Tensor) -> Any:
    a, *b = x.unbind(0)
    (c, d), e = (a, b[0]), b[-1]
    first, *_, last = range(5)
    [p, q] = [1, 2]
    d, c = c, d
    return c - d + e, first, last, {"a": p, "b": q}, [*b, a], (*b,)


@program
def walrus(x: Tensor) -> Any:
    if (n := x.shape[0]) > 1:
        x = x * n
    ys = [y for i in range(4) if (y := i * 2) > 2]
    while (n := n - 1) > 0:
        x = x + n
    return x, ys


@program
def comprehensions(x: Tensor) -> Any:
    squares = {i: i * i for i in range(4)}
    names = {k for k in "abca"}
    nested = [[i * j for j in range(3)] for i in range(2) if i]
    total = sum(x[i] for i in range(x.shape[0]))
    return total, squares, sorted(names), nested, any(v > 3 for v in squares.values()), all(nested)


@program
def conditional_expressions_and_chains(x: Tensor) -> Any:
    a = 1 if x.dim() == 2 else 2
    b = 0 < a < 3 <= 5 != 4
    c = None or [] or "z"
    d = x.shape[0] and x.shape[1]
    return x * a, b, c, d, not b, a is not None, 3 not in (1, 2)


@program
def loops_with_else(x: Tensor) -> Any:
    out = []
    for i in range(5):
        if i == 1:
            continue
        if i == 4:
            break
        out.append(x * i)
    else:
        out.append(x)
    for _ in []:
        pass
    else:
        out.append(x + 1)
    n = 3
    while n:
        n -= 1
    else:
        out.append(x - 1)
    return out


@program
def match_statements(x: Tensor) -> Any:
    def kind(v: Any) -> Any:
        match v:
            case 0 | 1:
                return "small"
            case int(n) if n > 100:
                return n
            case [a, b, *rest]:
                return a, b, len(rest)
            case {"k": value, **others}:
                return value, sorted(others)
            case Point(x=0, y=yy):
                return "axis", yy
            case Point(px, py):
                return px + py
            case str() as s:
                return s.upper()
            case None:
                return "none"
            case _:
                return "other"

    values = [1, 200, [1, 2, 3], (4, 5), {"k": 1, "z": 2}, Point(0, 2), Point(1, 2), "ab", None, 3.5]
    return x + 1, [kind(v) for v in values]


@program
def exceptions(x: Tensor) -> Any:
    out = []
    for i in range(4):
        try:
            if i == 0:
                raise ValueError("zero")
            if i == 1:
                out.append({}["missing"])
            if i == 2:
                out.append([][5])
            out.append(x * i)
        except (ValueError, KeyError) as e:
            out.append(str(e))
        except IndexError:
            out.append("index")
        else:
            out.append("fine")
        finally:
            out.append(i)
    return out


@program
def own_exceptions_with_cause(x: Tensor) -> Any:
    try:
        try:
            raise OwnError("inner", 3)
        except OwnError as e:
            raise RuntimeError("outer") from e
    except RuntimeError as e:
        return x + e.__cause__.code, str(e), type(e.__context__).__name__


@program
def exception_out_of_a_callee(x: Tensor) -> Any:
    def f(y: Tensor, depth: int) -> Tensor:
        if depth == 0:
            raise OwnError("deep", 7)
        try:
            return f(y * 2, depth - 1)
        finally:
            seen.append(depth)

    seen: list[int] = []
    try:
        f(x, 3)
    except OwnError as e:
        x = x * e.code
    return x, seen


@program
def assertions_and_del(x: Tensor) -> Any:
    assert x.ndim == 2, "two dims"
    d = {"a": 1, "b": 2}
    del d["a"]
    y = [1, 2, 3, 4]
    del y[1:3]
    z = x
    del x
    with contextlib.suppress(AssertionError):
        raise AssertionError("not this one")
    return z * 2, d, y


# --------------------------------------------------------------------------------------------------------- generators


@program
def generators(x: Tensor) -> Any:
    def rows(t: Tensor) -> Iterator[Tensor]:
        for i in range(t.shape[0]):
            yield t[i] * i

    g = rows(x)
    first = next(g)
    return first + sum(g), list(rows(x)), next(iter(()), "end")


@program
def yield_from_and_send(x: Tensor) -> Any:
    def inner() -> Any:
        got = yield 1
        got2 = yield got * 2
        return got2

    def outer() -> Any:
        result = yield from inner()
        yield result + 100

    g = outer()
    out = [next(g), g.send(5), g.send(7)]
    g.close()
    return x.sum(), out


@program
def generator_with_finally(x: Tensor) -> Any:
    seen = []

    def g() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            seen.append("closed")

    for v in g():
        seen.append(v)
        break
    it = g()
    next(it)
    it.close()
    return x + 1, seen


@program
def iterator_classes(x: Tensor) -> Any:
    out = x
    for i in Countdown(3):
        out = out + i
    return out, list(Countdown(2)), sum(Countdown(4)), 2 in Countdown(3), max(Countdown(5))


# --------------------------------------------------------------------------------------------------------- containers


@program
def dicts(x: Tensor) -> Any:
    d = dict(a=1, b=2)
    d.update({"c": 3}, e=5)
    d["a"] += 10
    d.setdefault("f", []).append(x)
    popped = d.pop("b")
    merged = d | {"z": 0}
    merged |= {"y": 1}
    items = list(merged.items())
    return (
        d["f"][0] * popped,
        list(d),
        items[1:3],
        "a" in d,
        len(d),
        d.get("q", "no"),
        dict.fromkeys("ab", 0),
        list(reversed(d)),
        d.keys() & {"a", "q"},
        dict(zip("ab", (1, 2), strict=True)),
        max(d.keys() - {"f"}),
    )


@program
def ordered_and_default_dicts(x: Tensor) -> Any:
    o = collections.OrderedDict(a=1, b=2, c=3)
    o.move_to_end("a")
    first = o.popitem(last=False)
    d = collections.defaultdict(list)
    for i, k in enumerate("abab"):
        d[k].append(x * i)
    counts = collections.Counter("hello")
    counts.update("lo")
    chain = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    return sum(d["a"]), list(o), first, sorted(d), counts.most_common(2), counts["z"], chain["a"] + chain["b"]


@program
def lists_and_sorting(x: Tensor) -> Any:
    v = [5, 2, 9, 1]
    v.sort(reverse=True)
    v.insert(1, 7)
    v.extend((3, 3))
    v.remove(9)
    words = sorted(["bb", "a", "ccc"], key=len, reverse=True)
    heap = [3, 1, 2]
    heapq.heapify(heap)
    heapq.heappush(heap, 0)
    bisect.insort(ordered := [1, 3], 2)
    by = sorted([(1, "b"), (1, "a"), (0, "z")], key=lambda p: (p[0], p[1]))
    low = min([x, x * 2], key=lambda t: t.ndim)
    v[1:3] = [0, 0, 0]
    v *= 2
    return (
        low,
        v,
        v[::-1],
        v.index(3),
        v.count(0),
        words,
        by,
        max(by, key=operator.itemgetter(1)),
        [0] * 3 + [1],
        list(enumerate("ab", 1)),
        v.pop(),
        v.pop(0),
        heapq.heappop(heap),
        heapq.nlargest(2, heap),
        ordered,
    )


@program
def sets(x: Tensor) -> Any:
    s = {1, 2, 3}
    s.add(4)
    s -= {1}
    s |= {9}
    t = frozenset(s)
    s.discard(100)
    return x * len(s), sorted(s), sorted(s ^ {2, 77}), s >= {2}, 3 in t, sorted(t & {2, 3}), s.isdisjoint({50})


@program
def deques(x: Tensor) -> Any:
    d = collections.deque([x], maxlen=3)
    for i in range(4):
        d.append(x * i)
    d.rotate(1)
    d.appendleft(x + 100)
    return d[0], len(d), torch.stack(tuple(d)), d.popleft()


@program
def slices_and_strings(x: Tensor) -> Any:
    s = slice(0, None, 2)
    text = "layer.0.weight"
    parts = text.split(".")
    name = f"{parts[0]!r:>10}|{x.shape[0]:03d}|{math.pi:.3f}|{text=}"
    return (
        x[s, 1:],
        parts,
        name,
        "-".join(reversed(parts)),
        text.replace("0", "1").startswith("layer.1"),
        "%s-%d" % ("a", 3),
        f"{1}{2}",
        text.partition("."),
        text.rfind("e"),
        ["a", "b", "", "c"],
        " x ".strip(),
        str(x.dtype),
        "abc"[::-1],
        b"ab".decode(),
        "é".encode(),
    )


@program
def numbers(x: Tensor) -> Any:
    return (
        x * (7 // 2) + 7 % 3 - 2**3,
        divmod(17, 5),
        round(2.567, 1),
        abs(-3),
        int("12"),
        float("1e3"),
        math.ceil(2.1),
        math.prod([1, 2, 3]),
        5 & 3 | 8,
        1 << 4,
        ~2,
        -7 // 2,
        pow(2, 5, 7),
        min(3, 1),
        sum([0.5, 1]),
        bin(5),
        hex(255),
        complex(1, 2).imag,
        (3).bit_length(),
        math.isclose(0.1 + 0.2, 0.3),
        10 / 4,
        True + 1,
    )


# ---------------------------------------------------------------------------------------------------- standard library


@program
def functools_and_operator(x: Tensor) -> Any:
    scale = functools.partial(torch.mul, other=3)
    total = functools.reduce(operator.add, [x, x * 2, x * 3])
    get = operator.itemgetter("a", "b")
    attr = operator.attrgetter("ndim")
    call = operator.methodcaller("sum", 0)

    @functools.wraps(total_of)
    def wrapper(*a: Any) -> Any:
        return total_of(*a)

    @functools.cache
    def fib(n: int) -> int:
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    compared = sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))
    return (
        scale(x),
        total,
        get({"a": 1, "b": 2}),
        attr(x),
        call(x),
        wrapper(1, 2),
        wrapper.__name__,
        fib(10),
        compared,
        operator.mul(3, 4),
    )


def total_of(*a: Any) -> Any:
    return sum(a)


@functools.singledispatch
def describe(v: Any) -> str:
    return "thing"


@describe.register
def _(v: int) -> str:
    return "int"


@describe.register(list)
def _(v: list[Any]) -> str:
    return "list"


def test_single_dispatch_is_right() -> None:
    """Its cache is keyed by weak references: declined until every class was met."""

    def f(x: Tensor) -> Any:
        return x + 1, describe(1), describe([]), describe("s")

    with torch.no_grad():
        same(flashover.compile(f)(INPUTS[0]), f(INPUTS[0]))


@program
def itertools_of_all_kinds(x: Tensor) -> Any:
    pairs = list(itertools.product("ab", (1, 2)))
    runs = [(k, len(list(g))) for k, g in itertools.groupby("aabbb")]
    acc = list(itertools.accumulate([1, 2, 3]))
    out = x
    for i, j in itertools.chain(zip([1], [2], strict=True), [(3, 4)]):
        out = out * i + j
    return (
        out,
        pairs,
        runs,
        acc,
        list(itertools.islice(itertools.count(3, 2), 3)),
        list(itertools.combinations(range(3), 2)),
        list(itertools.zip_longest([1], [2, 3])),
        list(itertools.takewhile(lambda v: v < 2, range(5))),
        list(itertools.starmap(pow, [(2, 3)])),
        list(itertools.repeat(1, 2)),
        list(itertools.pairwise([1, 2, 3])),
        list(map(lambda a, b: a + b, [1, 2], [3, 4])),
        list(filter(None, [0, 1, 2])),
        list(itertools.permutations([1, 2, 3], 2))[:2],
        next(itertools.cycle([5])),
    )


@contextlib.contextmanager
def doubled(box: list[int]) -> Iterator[int]:
    box.append(1)
    try:
        yield 2
    finally:
        box.append(2)


class Manager:
    def __init__(self, swallow: bool) -> None:
        self.swallow, self.log = swallow, []

    def __enter__(self) -> Manager:
        self.log.append("in")
        return self

    def __exit__(self, t: Any, v: Any, tb: Any) -> bool:
        self.log.append(t.__name__ if t else "out")
        return self.swallow


@program
def context_managers(x: Tensor) -> Any:
    box: list[int] = []
    with doubled(box) as k, contextlib.nullcontext(5) as five, Manager(True) as m:
        x = x * k * five
        raise ValueError("swallowed")
    with contextlib.suppress(KeyError):
        x = x * {}["no"]
    with contextlib.ExitStack() as stack:
        inner = stack.enter_context(Manager(False))
        stack.callback(box.append, 9)
        x = x + 1
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=False):
        x = x * 2
    with torch.inference_mode(False):
        x = x + 1
    return x, box, m.log, inner.log


@program
def copies(x: Tensor) -> Any:
    nested = {"a": [1, [2, 3]], "p": Point(1, 2)}
    deep, shallow = copy.deepcopy(nested), copy.copy(nested)
    deep["a"][1].append(4)
    shallow["a"].append(5)
    return x + 1, nested["a"], deep["a"], deep["p"] == nested["p"], deep["p"] is nested["p"]


@program
def typing_and_inspect(x: Tensor) -> Any:
    def f(a: int, *, b: float = 1.0, **kw: Any) -> None: ...

    signature = inspect.signature(f)
    value = typing.cast(int, 3)
    optional = typing.Optional[int]
    return (
        x * value,
        list(signature.parameters),
        signature.parameters["b"].default,
        typing.get_args(optional)[0].__name__,
        inspect.isfunction(f),
        callable(f),
        f.__name__,
        types.SimpleNamespace(a=1).a,
    )


@program
def warnings_and_logging(x: Tensor) -> Any:
    log.debug("never shown %s", x.shape)
    if log.isEnabledFor(logging.DEBUG):
        raise AssertionError
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
    return x + 1


@program
def globals_and_builtins(x: Tensor) -> Any:
    return (
        x + GLOBAL["k"],
        isinstance(x, Tensor),
        len(x),
        type(x) is Tensor,
        x.ndim,
        id(x) == id(x),
        x is x,
        callable(len),
        issubclass(bool, int),
        list(zip("ab", range(2), strict=False)),
        hash("a") == hash("a"),
        repr([1, "a"]),
        ascii("é"),
        ord("a"),
        chr(98),
        tuple(reversed([1, 2])),
        vars(Slotted(1, 2).__class__).get("nothing"),
        iter([1]).__next__(),
    )


GLOBAL = {"k": 2}


@program
def tensor_methods_and_shapes(x: Tensor) -> Any:
    b, n = x.size()
    y = x.view(b, -1, 1).expand(-1, -1, 3).permute(2, 0, 1)
    z = x.new_zeros(b, n, dtype=torch.float64).to(x) + torch.zeros_like(x).type_as(x)
    z[:, 1:3] += 1
    z[0] = 5
    z[..., -1] *= 2
    w = z.masked_fill(z > 4, 0.0)
    w += w.new_tensor([1.0] * n)
    return (
        y,
        z,
        w,
        x.T.shape,
        x.dtype,
        x.device.type,
        x.numel(),
        x.is_floating_point(),
        y.stride(),
        x[None, ..., None].shape,
        torch.Size([1, 2]).numel(),
        list(x.shape),
        x.mT @ x,
    )


@program
def torch_dicts_and_lists(x: Tensor) -> Any:
    outs = {"logits": x, "hidden": (x + 1, [x * 2])}
    flat, spec = pytree.tree_flatten(outs)
    return pytree.tree_unflatten([t * 2 for t in flat], spec), pytree.tree_map(lambda t: t - 1, outs)


@functools.lru_cache(None)
def said_once(logger: logging.Logger, text: str) -> int:
    logger.info("%s", text)
    return len(text)


@program
def cached_by_identity(x: Tensor) -> Any:
    return x + said_once(log, "hello")


INPUTS = [torch.arange(12.0).reshape(3, 4), torch.linspace(-1, 1, 10).reshape(2, 5)]


@pytest.mark.parametrize("f", PROGRAMS + object_programs.PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.timeout(60)
def test_program(f: Callable[..., Any]) -> None:
    fast = flashover.compile(f, fullgraph=True)
    with torch.no_grad():
        for x in (INPUTS[0], INPUTS[0] + 1, INPUTS[1], INPUTS[0]):
            same(fast(x.clone()), f(x.clone()))


def test_vmap_is_right_or_declined() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.func.vmap(lambda r: r * r.sum())(x)

    with torch.no_grad():
        same(flashover.compile(f)(INPUTS[0]), f(INPUTS[0]))


def test_coroutines_are_declined() -> None:
    async def f(x: Tensor) -> Tensor:
        return x + 1

    coroutine = flashover.compile(f)(INPUTS[0])
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    same(stop.value.value, INPUTS[0] + 1)


def test_tracebacks_point_to_the_program() -> None:
    def f(x: Tensor) -> Tensor:
        return helper(x)

    def helper(x: Tensor) -> Tensor:
        raise OwnError("from the program", 1)

    with pytest.raises(OwnError) as raised, torch.no_grad():
        flashover.compile(f)(INPUTS[0])
    assert [e.name for e in raised.traceback][-2:] == ["f", "helper"]


def test_subclasses_and_modes_are_right() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(func, "__name__", "?"))
            return super().__torch_function__(func, types, args, kwargs or {})

    seen: list[str] = []
    x = INPUTS[0].as_subclass(Loud)
    out = flashover.compile(lambda t: torch.relu(t) + 1)(x)
    assert type(out) is Loud and "relu" in seen

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {})) * 2 if func is torch.relu else func(*args, **(kwargs or {}))

    fast = flashover.compile(lambda t: torch.relu(t) + 1)
    with torch.no_grad():
        plain = fast(INPUTS[0])
        with Mode():
            assert torch.equal(fast(INPUTS[0]), F.relu(INPUTS[0]) * 2 + 1)
        assert torch.equal(fast(INPUTS[0]), plain)


def test_generators_that_die_with_a_declined_capture() -> None:
    """Finalized half way, they leave nothing behind that the end of the capture could stumble on."""

    def f(x: Tensor) -> Tensor:
        def rows() -> Iterator[Tensor]:
            try:
                yield x[0]
                yield x[1]
            finally:
                seen.append("closed")

        seen: list[str] = []
        for row in rows():
            first = row
            break
        any(v > 2 for v in range(5))
        return first + 1 if x.sum() > 0 else first - 1  # ends the capture

    with torch.no_grad():
        for _ in range(3):
            same(flashover.compile(f)(INPUTS[0]), f(INPUTS[0]))
