"""Plain Python for the differential test of the frame interpreter: classes, objects, containers, the library.

Each program is a function without arguments whose result, or exception, must be the same in the interpreter as in
CPython."""

import collections
import copy
import dataclasses
import enum
import functools
import itertools
import math
import operator
from dataclasses import dataclass, field
from typing import NamedTuple

from programs import Programs

PROGRAMS = program = Programs()


class Base:
    kind = "base"
    count = 0

    def __init__(self, v=1):
        self.v = v

    def m(self):
        return ("Base.m", self.v)

    @property
    def p(self):
        return self.v * 2

    @p.setter
    def p(self, value):
        self.v = value // 2

    @classmethod
    def make(cls, v):
        return cls(v)

    @staticmethod
    def st(a):
        return a + 1

    def __repr__(self):
        return f"{type(self).__name__}({self.v})"

    def __eq__(self, other):
        return isinstance(other, Base) and self.v == other.v

    def __hash__(self):
        return hash(self.v)

    def __lt__(self, other):
        return self.v < other.v

    def __add__(self, other):
        return type(self)(self.v + (other.v if isinstance(other, Base) else other))

    __radd__ = __add__

    def __iadd__(self, other):
        self.v += 100
        return self

    def __getitem__(self, k):
        return (self.v, k)

    def __contains__(self, k):
        return k == self.v

    def __len__(self):
        return self.v

    def __bool__(self):
        return self.v != 0

    def __call__(self, *a, **k):
        return ("call", a, k)

    def __iter__(self):
        return iter(range(self.v))


class Derived(Base):
    def __init__(self, v):
        super().__init__(v + 1)
        self.extra = "e"

    def m(self):
        return ("Derived.m",) + super().m()

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return name[4:]
        raise AttributeError(name)


class Slots:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


@program
def classes():
    b, d = Base(3), Derived(4)
    d.p = 20
    b += 1
    out = [
        b.m(),
        d.m(),
        b.p,
        d.p,
        Derived.make(1),
        Base.st(4),
        repr(d),
        b == Base(103),
        Base(1) + 2,
        5 + Base(1),
        b["k"],
        103 in b,
        len(d),
        bool(Base(0)),
        not Base(0),
        d(1, k=2),
        list(Base(3)),
        sorted([Base(3), Base(1)]),
        {Base(1): "x"}[Base(1)],
        d.dyn_foo,
        hasattr(d, "nope"),
        getattr(d, "nope", "default"),
        d.kind,
        Derived.count,
        isinstance(d, Base),
        type(d).__mro__[1].__name__,
    ]
    s = Slots()
    s.b = 2
    out.append((s.a, s.b, hasattr(s, "c")))
    try:
        d.nope
    except AttributeError as e:
        out.append(str(e))
    try:
        s.c = 1
    except AttributeError as e:
        out.append(str(e))
    del d.extra
    out.append(hasattr(d, "extra"))
    return out


@program
def class_in_function():
    x = 5

    class Local(Base):
        y = x * 2
        z = [i for i in range(3)]

        def get(self):
            return (self.y, x, __class__.__name__)

        @functools.cached_property
        def lazy(self):
            return self.y + 1

    l = Local(1)
    return l.get(), Local.z, l.lazy, l.lazy, Local.__qualname__


class Meta(type):
    def __call__(cls, *args):
        obj = super().__call__(*args)
        obj.tag = "meta"
        return obj

    def __getattr__(cls, name):
        return "meta:" + name

    def __len__(cls):
        return 42


class WithMeta(metaclass=Meta):
    def __init__(self, a):
        self.a = a


@program
def metaclasses():
    w = WithMeta(3)
    return w.a, w.tag, WithMeta.something, len(WithMeta)


class Descriptor:
    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, owner=None):
        return (self.name, None if obj is None else obj.__dict__.get("_" + self.name))

    def __set__(self, obj, value):
        obj.__dict__["_" + self.name] = value


class HasDescriptor:
    d = Descriptor()


@program
def descriptors():
    h = HasDescriptor()
    h.d = 4
    return h.d, HasDescriptor.d, h.__dict__


@dataclass
class Point:
    x: int
    y: int = 2
    tags: list = field(default_factory=list)

    def norm(self):
        return math.sqrt(self.x**2 + self.y**2)


@dataclass(frozen=True, order=True)
class Frozen:
    a: int


class NT(NamedTuple):
    a: int
    b: str = "z"


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Perm(enum.IntFlag):
    R = 1
    W = 2


@program
def records():
    p = Point(3, 4)
    p.tags.append(1)
    q = dataclasses.replace(p, x=6)
    out = [
        p,
        p.norm(),
        q,
        dataclasses.asdict(p),
        [f.name for f in dataclasses.fields(p)],
        Frozen(1) < Frozen(2),
        NT(1),
        NT(1)._replace(a=5),
        NT(2).b,
    ]
    try:
        Frozen(1).a = 2
    except dataclasses.FrozenInstanceError as e:
        out.append(str(e))
    out += [
        Color.RED,
        Color(1),
        Color["BLUE"],
        Color.BLUE.value,
        [c.name for c in Color],
        Color.RED is Color(1),
        Perm.R | Perm.W,
        Perm.R in (Perm.R | Perm.W),
    ]
    return repr(out)


@program
def matching():
    def f(v):
        match v:
            case 0:
                return "zero"
            case int(n) if n > 100:
                return ("big", n)
            case [a, b]:
                return ("pair", a, b)
            case [a, *rest]:
                return ("list", a, rest)
            case {"k": k, **rest}:
                return ("dict", k, rest)
            case Point(x=1, y=y):
                return ("point", y)
            case Point(x, y):
                return ("point2", x, y)
            case str() | bytes() as s:
                return ("text", s)
            case Color.RED:
                return "red"
            case None:
                return "none"
            case _:
                return "other"

    return [
        f(v)
        for v in (
            0,
            101,
            [1, 2],
            (1, 2, 3),
            {"k": 1, "j": 2},
            Point(1, 5),
            Point(2, 6),
            "s",
            b"b",
            Color.RED,
            None,
            3.5,
            [],
        )
    ]


@program
def containers():
    od = collections.OrderedDict(a=1, b=2)
    od.move_to_end("a")
    dd = collections.defaultdict(list)
    dd["x"].append(1)
    dq = collections.deque([1, 2, 3], maxlen=3)
    dq.append(4)
    c = collections.Counter("abca")
    d = {"a": 1}
    d.setdefault("b", []).append(2)
    d.update(c=3)
    popped = d.pop("a")
    l = [3, 1, 2]
    l.sort(reverse=True)
    l.insert(0, 9)
    l[1:3] = [7]
    del l[0]
    s = {1, 2} | {3}
    s.discard(1)
    return (
        list(od),
        dict(dd),
        list(dq),
        c.most_common(1),
        d,
        popped,
        l,
        s,
        sorted(d.keys()),
        list(d.items()),
        [*reversed(l)],
        d.get("zz"),
        d.keys() & {"b"},
    )


@program
def itertools_and_functools():
    part = functools.partial(lambda a, b, c=0: (a, b, c), 1, c=3)

    @functools.lru_cache(None)
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    @functools.wraps(fib)
    def wrapped(*a):
        return fib(*a)

    return (
        part(2),
        fib(15),
        wrapped(10),
        functools.reduce(operator.mul, [1, 2, 3, 4]),
        list(itertools.chain([1], (2, 3))),
        list(itertools.islice(itertools.count(), 3)),
        list(zip("ab", range(5))),
        list(enumerate("ab", 1)),
        list(map(lambda a, b: a * b, [1, 2], [3, 4])),
        list(filter(None, [0, 1, 2])),
        list(itertools.product("ab", repeat=2)),
        [(k, list(g)) for k, g in itertools.groupby([1, 1, 2])],
        sorted(["b", "A"], key=str.lower),
        operator.itemgetter(1)([5, 6]),
        operator.attrgetter("v")(Base(4)),
        list(itertools.accumulate([1, 2, 3])),
    )


@program
def copying():
    p = Point(1, 2, [[1]])
    q, r = copy.copy(p), copy.deepcopy(p)
    p.tags[0].append(2)
    return q, r, copy.deepcopy({"a": [1, (2, [3])]})


@program
def walrus_and_ternary():
    if (n := len("abc")) > 2:
        r = n
    vals = [y := 1, y**2]
    return r, vals, y, ("a" if n else "b"), (n and 0) or 5, [z for x in range(5) if (z := x * 2) > 3]


@program
def deletion():
    x = [1, 2, 3]
    del x[1]
    y = {"a": 1}
    del y["a"]
    z = 1
    del z
    try:
        z
    except UnboundLocalError as e:
        return x, y, str(e)


@program
def asserts():
    try:
        assert 1 == 2, "message"
    except AssertionError as e:
        return str(e)


@program
def slices():
    l = list(range(10))
    l[2:4] = "ab"
    del l[::3]
    return l, l[-2:], l[::-1], "hello"[1:3], (1, 2, 3)[:-1], l[slice(1, None)]


@program
def annotations():
    a: int = 3
    b: int | None

    class A:
        x: int = 1
        y: str

    return a, A.__annotations__


@program
def recursion():
    def ack(m, n):
        return n + 1 if m == 0 else (ack(m - 1, 1) if n == 0 else ack(m - 1, ack(m, n - 1)))

    def forever(n):
        return forever(n + 1)

    try:
        forever(0)
    except RecursionError as e:
        return ack(2, 2), str(e)


@program
def globals_and_builtins():
    global SCRATCH
    SCRATCH = [1]
    SCRATCH.append(2)
    r = SCRATCH
    del SCRATCH
    try:
        SCRATCH
    except NameError as e:
        return (
            r,
            str(e),
            sum([1, 2]),
            abs(-1),
            min(3, 1),
            round(2.567, 1),
            divmod(7, 2),
            isinstance(1, (int, str)),
            callable(len),
            chr(65),
            int("3"),
            float("2.5"),
            bool([]),
        )


@program
def imports():
    import os.path as p
    from collections import abc
    from math import floor as fl

    try:
        from math import nonsense
    except ImportError as e:
        text = str(e)
    try:
        import not_a_module_at_all
    except ModuleNotFoundError as e:
        text2 = str(e)
    return p.join("a", "b"), abc.Mapping.__name__, fl(2.5), text[:40], text2


class Attr:
    def __getattribute__(self, name):
        if name == "special":
            return "intercepted"
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        super().__setattr__(name, ("set", value))

    def __delattr__(self, name):
        object.__delattr__(self, name)


@program
def attribute_hooks():
    a = Attr()
    a.x = 1
    r = a.special, a.x
    del a.x
    return r, hasattr(a, "x"), vars(a)


@program
def multiple_inheritance():
    class A:
        def f(self):
            return ["A"]

    class B(A):
        def f(self):
            return ["B"] + super().f()

    class C(A):
        def f(self):
            return ["C"] + super().f()

    class D(B, C):
        def f(self):
            return ["D"] + super().f()

    return D().f(), [c.__name__ for c in D.__mro__]


@program
def sys_frames():
    import sys

    def who():
        return sys._getframe(1).f_code.co_name if False else "who"

    return who()


@program
def loops_with_try():
    out = []
    for i in range(6):
        try:
            if i == 2:
                continue
            if i == 4:
                break
            if i == 1:
                raise ValueError(i)
            out.append(i)
        except ValueError as e:
            out.append(("v", e.args))
        else:
            out.append("else")
        finally:
            out.append("f")
    return out


@program
def string_methods():
    return (
        ["a", "b"],
        "-".join(["x", "y"]),
        "abc".upper(),
        " x ".strip(),
        "abc".startswith(("a", "z")),
        "a=%r" % (1,),
        "abc".replace("b", "d"),
        b"x",
        b"ab"[0],
        "tEst".title(),
        "a\tb".expandtabs(2),
        "abc".find("c"),
    )
