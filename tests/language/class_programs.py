"""Classes inside a capture: small programs, each f(x, state), for test_language_programs.py."""
# ruff: noqa - one idea a line, in the old and odd ways that programs are written in, too

import copy
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import (
    Any,
    ClassVar,
    Generic,
    TypeVar,
)

from control_flow_programs import Pt
from programs import Programs

PROGRAMS = p = Programs()


# ---- classes
@p
def cls_inside_meta(x, S):
    class M(type):
        def __new__(m, n, b, d, **k):
            c = super().__new__(m, n, b, d)
            c.kw = k
            return c

        def __init__(c, n, b, d, **k):
            super().__init__(n, b, d)

        def __getitem__(c, i):
            return i * 2

        def __len__(c):
            return 7

    class A(metaclass=M, q=1):
        def f(self):
            return __class__.__name__

    return x, A.kw, A[3], len(A), A().f()


@p
def cls_init_subclass(x, S):
    reg = []

    class A:
        def __init_subclass__(cls, /, tag=None, **k):
            super().__init_subclass__(**k)
            reg.append((cls.__name__, tag))

    class B(A, tag="b"):
        pass

    class C(B):
        pass

    return x, reg


@p
def cls_descr(x, S):
    class D:
        def __set_name__(s, o, n):
            s.n = n

        def __get__(s, o, t):
            return (s.n, o is None)

        def __set__(s, o, v):
            o.__dict__["_" + s.n] = v

        def __delete__(s, o):
            del o.__dict__["_" + s.n]

    class A:
        q = D()

    a = A()
    a.q = 5
    r = (a.q, A.q, dict(a.__dict__))
    del a.q
    return x, r, a.__dict__


@p
def cls_getattr(x, S):
    class A:
        def __getattr__(s, n):
            if n == "zz":
                raise AttributeError(n)
            return n * 2

        def __setattr__(s, n, v):
            object.__setattr__(s, n, (v,))

        def __delattr__(s, n):
            S.l.append(n)
            object.__delattr__(s, n)

    a = A()
    a.b = 1
    r = (a.b, a.c, hasattr(a, "zz"), getattr(a, "zz", 0))
    del a.b
    return x, r


@p
def cls_getattribute(x, S):
    class A:
        def __getattribute__(s, n):
            if n.startswith("q"):
                return n
            return object.__getattribute__(s, n)

        v = 3

    return x * A().v, A().qq


@p
def cls_slots(x, S):
    class A:
        __slots__ = ("a", "b")

    a = A()
    a.a = x
    return a.a * 2, hasattr(a, "b")


@p
def cls_ops(x, S):
    class A:
        def __init__(s, v):
            s.v = v

        def __add__(s, o):
            return A(s.v + (o.v if isinstance(o, A) else o))

        def __radd__(s, o):
            return A(o + s.v)

        def __iadd__(s, o):
            s.v = s.v + o
            return s

        def __getitem__(s, i):
            return (s.v, i)

        def __setitem__(s, i, v):
            S.l.append((i, v))

        def __delitem__(s, i):
            S.l.append(("d", i))

        def __contains__(s, i):
            return i == 3

        def __eq__(s, o):
            return s.v == o.v

        def __hash__(s):
            return 5

        def __lt__(s, o):
            return s.v < o.v

        def __len__(s):
            return 2

        def __bool__(s):
            return s.v > 0

        def __int__(s):
            return int(s.v)

        def __float__(s):
            return float(s.v)

        def __index__(s):
            return s.v

        def __call__(s, *a, **k):
            return a, k

        def __enter__(s):
            return s

        def __exit__(s, *a):
            S.l.append(len(a))
            return True

        def __iter__(s):
            return iter([1, 2])

        def __reversed__(s):
            return iter([2, 1])

        def __neg__(s):
            return A(-s.v)

        def __matmul__(s, o):
            return "mm"

        def __format__(s, f):
            return "F" + f

        def __str__(s):
            return "S"

        def __repr__(s):
            return "R"

        def __round__(s, n=0):
            return "rnd"

        def __divmod__(s, o):
            return "dm"

        def __abs__(s):
            return "abs"

        def __missing__(s, k):
            return k

        def __length_hint__(s):
            return 9

    a = A(2)
    b = A(3)
    a[1:2] = 4
    del a[0]
    c = 1 + a
    c += 5
    with a as q:
        raise ValueError
    return (
        x,
        (a + b).v,
        c.v,
        a[1:2],
        a[..., 1],
        3 in a,
        a == b,
        a != b,
        {a: 1}[A(2)],
        sorted([b, a])[0].v,
        len(a),
        bool(A(0)),
        int(a),
        float(a),
        [10, 20, 30][a],
        a(1, z=2),
        list(a),
        list(reversed(a)),
        (-a).v,
        a @ b,
        f"{a:zz}{a!s}{a!r}",
        round(a),
        divmod(a, 1),
        abs(a),
        max(a, b).v,
        range(5)[a],
        hex(a),
        not a,
    )


@p
def cls_prop(x, S):
    class A:
        def __init__(s):
            s._v = 1

        @property
        def v(s):
            return s._v

        @v.setter
        def v(s, q):
            s._v = q * 2

        @v.deleter
        def v(s):
            s._v = None

        @classmethod
        def mk(cls):
            return cls()

        @staticmethod
        def st(a):
            return a + 1

        @functools.cached_property
        def cp(s):
            S.n += 1
            return s._v

    a = A.mk()
    a.v = 4
    r = a.v
    del a.v
    return x, r, a.v, A.st(1), a.cp, a.cp


@p
def cls_super_multi(x, S):
    class A:
        def __init__(s, **k):
            s.log = ["A"]
            super().__init__(**k)

    class B(A):
        def __init__(s, b, **k):
            super().__init__(**k)
            s.log.append(b)

    class C(A):
        def __init__(s, c, **k):
            super().__init__(**k)
            s.log.append(c)

    class D(B, C):
        def __init__(s):
            super().__init__(b=1, c=2)
            super(B, s).__init__

    return x, D().log


@p
def cls_attr_write(x, S):
    Counter_.n += 1
    v = Counter_.n
    Counter_.n = 0
    return x * v


class Counter_:
    n = 0

    def hit(self):
        type(self).n += 1
        self.__class__.m = self.n


@p
def cls_attr_write2(x, S):
    Counter_().hit()
    r = Counter_.n
    Counter_.n = 0
    return x * r


@p
def cls_new(x, S):
    class A:
        def __new__(cls, *a):
            o = super().__new__(cls)
            o.z = a
            return o

        def __init__(s, *a):
            s.y = a

    class Single:
        inst = None

        def __new__(cls):
            if cls.inst is None:
                cls.inst = super().__new__(cls)
            return cls.inst

    return x, A(1, 2).z, Single() is Single()


@p
def cls_generic(x, S):
    T = TypeVar("T")

    class B(Generic[T]):
        def __init__(s, v: T):
            s.v = v

    return x, B[int](3).v, B[int].__args__[0].__name__


@p
def cls_protocol(x, S):
    return x, isinstance(S.l, Iterable), isinstance(S.d, Mapping), isinstance(3, Hashable), isinstance(len, Callable)


@p
def inst_returned(x, S):
    a = Pt(x * 2, S.l)
    return a


@p
def inst_slots_returned(x, S):
    return Sl(x * 2, 3)


class Sl:
    __slots__ = ("a", "b")

    def __init__(s, a, b):
        s.a, s.b = a, b


@dataclass(slots=True)
class DS:
    a: Any
    b: Any = field(default_factory=list)


@dataclass(frozen=True)
class DF:
    a: Any
    b: Any = 1


@dataclass(frozen=True, slots=True, order=True)
class DFS:
    a: Any
    b: Any = 1


@p
def dc_slots(x, S):
    d = DS(x)
    d.b.append(1)
    return d.a * 2, d


@p
def dc_frozen(x, S):
    d = DF(x)
    try:
        d.a = 3
    except Exception as e:
        S.l.append(type(e).__name__)
    return d, DF(1) == DF(1), hash(DF(1)) == hash(DF(1)), copy.replace(d) if hasattr(copy, "replace") else 0


@p
def dc_frozen_slots(x, S):
    import dataclasses

    d = DFS(2)
    return x * d.a, d, DFS(1) < DFS(2), dataclasses.replace(d, b=x), dataclasses.astuple(d)


@p
def dc_in_state(x, S):
    S.d2 = Pt(x, 2)
    S.d2.y = 5
    S.d3 = DS(3)
    S.d3.b.append(x)
    return x


@p
def dc_kwonly(x, S):
    @dataclass(kw_only=True)
    class A:
        a: int
        b: int = 2
        c: InitVar[int] = 3
        d: ClassVar[int] = 4

        def __post_init__(s, c):
            s.e = c

    a = A(a=1)
    return x, a.a, a.b, a.e, A.d, repr(a)[-12:]
