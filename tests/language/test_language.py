"""The language inside a capture: each program, compiled whole, gives eager's result, also on other inputs."""
# ruff: noqa: C408, C416, E501, SIM222, UP031, UP042, UP045 - the old ways of writing things are under test, too

from __future__ import annotations

import abc
import bisect
import collections
import contextlib
import copy
import dataclasses
import enum
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
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.utils import _pytree as pytree

import flashover

Tensor = torch.Tensor
PROGRAMS: list[Callable[..., Any]] = []
log = logging.getLogger("flashover.tests.language")


def program(f: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS.append(f)
    return f


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b), (type(a), type(b))
    x, y = pytree.tree_leaves(a), pytree.tree_leaves(b)
    assert len(x) == len(y)
    for p, q in zip(x, y, strict=True):
        if isinstance(q, Tensor):
            assert (p.dtype, p.shape) == (q.dtype, q.shape)
            torch.testing.assert_close(p, q)
        elif dataclasses.is_dataclass(q) or (
            hasattr(q, "__dict__") and not callable(q) and not isinstance(q, enum.Enum)
        ):
            same(vars(p), vars(q))
        else:
            assert p == q, (p, q)


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


# ------------------------------------------------------------------------------------------------------------ classes


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __add__(self, o: Point) -> Point:
        return Point(self.x + o.x, self.y + o.y)

    def __mul__(self, k: Any) -> Point:
        return Point(self.x * k, self.y * k)

    __rmul__ = __mul__

    def __eq__(self, o: object) -> bool:
        return isinstance(o, Point) and self.x == o.x and self.y == o.y

    def __hash__(self) -> int:
        return hash((self.x, self.y))

    def __lt__(self, o: Point) -> bool:
        return self.x < o.x

    def __repr__(self) -> str:
        return f"Point({self.x}, {self.y})"

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        return (self.x, self.y)[i]

    def __iter__(self) -> Iterator[Any]:
        yield self.x
        yield self.y

    def __contains__(self, v: Any) -> bool:
        return v in (self.x, self.y)

    def __bool__(self) -> bool:
        return bool(self.x or self.y)

    def __call__(self, t: Tensor) -> Tensor:
        return t * self.x + self.y

    def __neg__(self) -> Point:
        return Point(-self.x, -self.y)


class Countdown:
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Countdown:
        return self

    def __next__(self) -> int:
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n + 1


class OwnError(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@program
def operators_of_classes(x: Tensor) -> Any:
    p = Point(1, 2) + 2 * Point(3, 4) * 1
    a, b = p
    flags = (
        p == Point(7, 10),
        p != Point(0, 0),
        bool(Point(0, 0)),
        7 in p,
        len(p),
        p[1],
        p < Point(9, 0),
        hash(p) == hash(Point(7, 10)),
    )
    return p(x), a, b, flags, repr(-p), sorted([Point(2, 0), Point(1, 0)])[0].x, {p: 1}[Point(7, 10)]


class Typed:
    """A data descriptor, a property, static and class methods, slots and __getattr__."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, o: Any, owner: type) -> Any:
        return self if o is None else getattr(o, self.name, 10)

    def __set__(self, o: Any, value: Any) -> None:
        setattr(o, self.name, value * 2)


class Everything:
    field = Typed()
    count = 0

    def __init__(self, k: int) -> None:
        self.k = k

    @property
    def double(self) -> int:
        return self.k * 2

    @double.setter
    def double(self, v: int) -> None:
        self.k = v // 2

    @staticmethod
    def static(x: Any) -> Any:
        return x + 1

    @classmethod
    def make(cls, k: int) -> Everything:
        return cls(k + 1)

    @functools.cached_property
    def cached(self) -> int:
        return self.k + 1000

    def __getattr__(self, name: str) -> Any:
        if name.startswith("auto_"):
            return int(name[5:])
        raise AttributeError(name)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


@program
def attributes_of_classes(x: Tensor) -> Any:
    e = Everything.make(3)
    before = e.field
    e.field = 5
    e.double = 20
    s = Slotted(x, 2)
    s.b += 1
    return (
        s.a * s.b, before, e.field, e.k, e.double, e.static(1), Everything.static(2), e.cached, e.cached, e.auto_7,
        hasattr(e, "nope"), getattr(e, "nope", "default"), isinstance(e, Everything), Everything.field.name,
    )  # fmt: skip


class A:
    def f(self, x: Any) -> Any:
        return x + 1


class B(A):
    def f(self, x: Any) -> Any:
        return super().f(x) * 2


class C(A):
    def f(self, x: Any) -> Any:
        return super().f(x) - 3


class D(B, C):
    def f(self, x: Any) -> Any:
        return super().f(x) + 10


@program
def super_along_the_mro(x: Tensor) -> Any:
    return D().f(x), [c.__name__ for c in D.__mro__], issubclass(D, C), type(D()).__name__


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self) -> Any: ...

    @classmethod
    def __subclasshook__(cls, c: type) -> Any:
        return NotImplemented


class Square(Shape):
    def __init__(self, side: Any) -> None:
        self.side = side

    def area(self) -> Any:
        return self.side**2


@program
def abstract_classes(x: Tensor) -> Any:
    return Square(x).area(), isinstance(Square(1), Shape), isinstance(1, Shape)


@program
def class_made_inside(x: Tensor) -> Any:
    class Local(A):
        k = 3

        def g(self, t: Tensor) -> Tensor:
            return self.f(t) * self.k

    return Local().g(x), Local.__name__, isinstance(Local(), A)


class Meta(type):
    registry: typing.ClassVar[dict[str, type]] = {}

    def __call__(cls, *args: Any) -> Any:
        made = super().__call__(*args)
        made.tag = cls.__name__
        return made


class WithMeta(metaclass=Meta):
    def __init__(self, v: Any) -> None:
        self.v = v


@program
def metaclass_call(x: Tensor) -> Any:
    w = WithMeta(x)
    return w.v * 2, w.tag


@dataclasses.dataclass
class Config:
    size: int = 3
    names: list[str] = dataclasses.field(default_factory=list)
    scale: float = 2.0

    def __post_init__(self) -> None:
        self.total = self.size * 2


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    a: int
    b: str = "z"


@program
def dataclass_instances(x: Tensor) -> Any:
    c = Config(4)
    d = dataclasses.replace(c, scale=3.0)
    c.names.append("n")
    return (
        x * d.scale + c.total, dataclasses.asdict(c), [f.name for f in dataclasses.fields(c)], Key(1) == Key(1), Key(1) < Key(2),
        {Key(1): 5}[Key(1)], c != d, dataclasses.is_dataclass(c),
    )  # fmt: skip


class Pair(NamedTuple):
    left: Any
    right: Any = 7

    def swap(self) -> Pair:
        return Pair(self.right, self.left)


Old = collections.namedtuple("Old", "a b")


@program
def named_tuples(x: Tensor) -> Any:
    p = Pair(x)
    q = p._replace(left=x + 1)
    a, b = Old(1, 2)
    return q.swap().right * q.right, q._asdict()["right"], Pair._fields, a + b, Old._make([3, 4]), p[1], len(p)


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def weight(self) -> int:
        return self.value * 10


class Flag(enum.IntFlag):
    A = 1
    B = 2


class Mode(str, enum.Enum):
    FAST = "fast"
    SLOW = "slow"


@program
def enums(x: Tensor) -> Any:
    c = Color.BLUE
    k = {Color.RED: 1, Color.BLUE: 2}[c]
    return (
        x * k * c.weight,
        c is Color(2),
        c.name,
        Color["RED"].value,
        [m.name for m in Color],
        bool(Flag.A & (Flag.A | Flag.B)),
        Mode("fast") == "fast",
        Mode.SLOW.value,
    )


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


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.timeout(60)
def test_program(f: Callable[..., Any]) -> None:
    fast = flashover.compile(f, fullgraph=True)
    with torch.no_grad():
        for x in (INPUTS[0], INPUTS[0] + 1, INPUTS[1], INPUTS[0]):
            same(fast(x.clone()), f(x.clone()))


# ------------------------------------------------------------------------------------------------------------- modules


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.by_name = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
        self.extra = nn.ParameterList([nn.Parameter(torch.ones(4) * i) for i in range(2)])
        self.named = nn.ParameterDict({"w": nn.Parameter(torch.full((4,), 0.5))})
        self.register_buffer("steps", torch.zeros(4), persistent=False)
        self.register_parameter("nothing", None)
        self.activations: dict[str, Tensor] = {}
        self.calls = 0

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        for i, layer in enumerate(self.layers[:2]):
            x = layer(x) * scale + self.extra[i]
        for name, f in self.by_name.items():
            x = f(x) if name == "a" else x + f(x)
        if self.nothing is not None:
            x = x * 0
        for p in self.layers[-1].parameters():
            x = x + p.sum()
        return x * self.named["w"] + self.steps + len(self.layers) + sum(1 for _ in self.children())


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LazyLinear(4)
        self.second = nn.LazyBatchNorm1d()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Attributes(nn.Module):
    """Overrides __getattr__, keeps plain containers of modules, calls methods of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.plain = [nn.Linear(4, 4)]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x) + self.plain[0](x) + self.in_features + self.weight.sum()

    def step(self, x: Tensor) -> Tensor:
        return self.get_submodule("inner")(x)


def modules() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    hooked = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    hooked.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
    hooked[0].register_forward_hook(lambda m, a, out: out * 2)
    hooked.register_forward_hook(lambda m, a, k, out: out - 1, with_kwargs=True)
    lazy = Lazy()
    lazy(torch.ones(2, 4))
    pruned = nn.Linear(4, 4)
    prune.l1_unstructured(pruned, "weight", 0.5)
    shared = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    shared[1].weight = shared[0].weight
    parametrized = nn.Linear(4, 4)
    parametrize.register_parametrization(parametrized, "weight", Symmetric())
    return {
        "block": Block(), "hooked": hooked, "lazy": lazy, "attributes": Attributes(), "weight_norm": nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        "orthogonal": nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), "spectral": nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        "pruned": pruned, "shared": shared, "parametrized": parametrized, "sequential": nn.Sequential(collections.OrderedDict(a=nn.Linear(4, 4), b=nn.Dropout())),
        "identity": nn.Sequential(nn.Identity(), nn.Flatten(0), nn.Unflatten(0, (3, 4))),
    }  # fmt: skip


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).mT


@pytest.mark.parametrize("name", modules())
@pytest.mark.timeout(60)
def test_module(name: str) -> None:
    module = modules()[name].eval()
    fast = flashover.compile(module, fullgraph=True)
    with torch.no_grad():
        for x in (INPUTS[0], INPUTS[0] * 2):
            same(fast(x), module(x))
        for p in module.parameters():
            p.add_(1)
        same(fast(INPUTS[0]), module(INPUTS[0]))


def test_hooks_that_come_and_go() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    fast = flashover.compile(module, fullgraph=True)
    x = INPUTS[0]
    with torch.no_grad():
        same(fast(x), module(x))
        handle = module[1].register_forward_hook(lambda m, a, out: out + 100)
        same(fast(x), module(x))
        handle.remove()
        same(fast(x), module(x))
        handle = nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 3)
        try:
            same(fast(x), module(x))
        finally:
            handle.remove()
        same(fast(x), module(x))
        module.append(nn.Tanh())
        same(fast(x), module(x))
        module[0] = nn.Linear(4, 4, bias=False)
        same(fast(x), module(x))


def test_functional_call() -> None:
    module = nn.Linear(4, 4)

    @functools.partial(flashover.compile, fullgraph=True)
    def f(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(module, weights, (x,))

    with torch.no_grad():
        for k in (1.0, 2.0):
            weights = {n: p * k for n, p in module.named_parameters()}
            same(f(weights, INPUTS[0]), torch.func.functional_call(module, weights, (INPUTS[0],)))


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
