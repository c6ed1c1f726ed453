"""The language inside a capture: small programs, each f(x, state), for test_language_programs.py."""
# ruff: noqa - one idea a line, in the old and odd ways that programs are written in, too

import abc
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import json
import logging
import math
import operator
import os
import random
import re
import statistics
import string
import sys
import textwrap
import threading
import time
import traceback
import types
import typing
import warnings
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, UserString, defaultdict, deque, namedtuple
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Dict,
    Generic,
    List,
    Literal,
    NamedTuple,
    Optional,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import torch
import torch.nn.functional as F
from outcomes import DA, DSub, LSub, Pr, SlS
from outcomes import State as NS
from outcomes import lines
from torch import nn

import flashover

PROGRAMS = []


def p(f):
    PROGRAMS.append(f)
    return f


G = {"k": 1}
GN = 0


# ---- generators
@p
def gen_throw(x, S):
    def g():
        while True:
            try:
                got = yield 1
            except ValueError as e:
                S.l.append(str(e))
                yield "caught"

    it = g()
    next(it)
    r = it.throw(ValueError("z"))
    next(it)
    return x + 1, r


@p
def gen_close_effects(x, S):
    def g():
        try:
            yield x * 2
        finally:
            S.l.append("fin")

    it = g()
    v = next(it)
    it.close()
    return v


@p
def gen_return_value(x, S):
    def g():
        yield x
        return "done"

    def o():
        r = yield from g()
        S.l.append(r)
        yield x + 1

    return list(o())


@p
def gen_stopiteration_value(x, S):
    def g():
        yield 1
        return x * 3

    it = g()
    next(it)
    try:
        next(it)
    except StopIteration as e:
        return e.value


@p
def gen_in_state(x, S):
    S.it = iter([1, 2, 3])
    a = next(S.it)
    return x + a


@p
def gen_returned(x, S):
    def g():
        yield x
        yield x + 1

    it = g()
    next(it)
    r = list(it)
    return r


@p
def gen_raise_runtime(x, S):
    def g():
        yield 1
        raise StopIteration

    try:
        list(g())
    except RuntimeError as e:
        return x + 1, str(e), repr(e.__cause__)


@p
def gen_expr_nested(x, S):
    return sum(x[i] * j for i in range(3) for j in range(2) if i != j)


@p
def gen_lazy_zip(x, S):
    return [a + b for a, b in zip((x * i for i in range(3)), itertools.count(1))]


@p
def gen_old_arg(x, S):
    return [x * i for i in S.l]


@p
def yield_from_throw(x, S):
    def inner():
        try:
            yield 1
        except KeyError:
            yield 2

    def outer():
        yield from inner()

    g = outer()
    next(g)
    return x, g.throw(KeyError("a"))


@p
def gen_iter_class(x, S):
    class It:
        def __init__(s, n):
            s.n = n

        def __iter__(s):
            for i in range(s.n):
                yield x * i

    a, b, c = It(3)
    return a + b + c, [*It(2)], sum(It(2))


# ---- exceptions
def raiser(x, k):
    if k:
        raise ValueError("bad", k)
    return x


@p
def exc_escape(x, S):
    S.n = 1
    S.l.append(5)
    y = raiser(x, 1)
    S.n = 2
    return y


@p
def exc_chain_escape(x, S):
    try:
        raiser(x, 1)
    except ValueError as e:
        S.n += 1
        raise KeyError("k") from e


@p
def exc_context_escape(x, S):
    try:
        raiser(x, 1)
    except ValueError:
        S.d["z"] = x * 2
        raise KeyError("k")


@p
def exc_from_none(x, S):
    try:
        try:
            raiser(x, 1)
        except ValueError:
            raise KeyError("k") from None
    except KeyError as e:
        return x + 1, e.__cause__, e.__suppress_context__, repr(e.__context__)


@p
def exc_finally_return(x, S):
    try:
        raiser(x, 1)
    finally:
        return x * 2


@p
def exc_finally_override(x, S):
    for i in range(3):
        try:
            if i == 1:
                continue
            S.l.append(i)
        finally:
            S.l.append("f%d" % i)
    return x


@p
def exc_else(x, S):
    try:
        y = x * 2
    except Exception:
        y = x
    else:
        y = y + 1
    finally:
        S.n = 3
    return y


@p
def exc_group_tb(x, S):
    try:
        raiser(x, 2)
    except ValueError as e:
        import traceback

        return x, e.args, e.__traceback__ is not None


@p
def exc_kept(x, S):
    try:
        raiser(x, 2)
    except ValueError as e:
        S.e = e
    return x + 1


@p
def exc_returned(x, S):
    return ValueError("a", x), x


@p
def exc_reraise(x, S):
    try:
        try:
            raiser(x, 2)
        except ValueError:
            S.l.append("in")
            raise
    except Exception as e:
        return x - 1, lines(e.__traceback__)


@p
def exc_index(x, S):
    try:
        return S.l[10]
    except IndexError as e:
        return x, str(e)


@p
def exc_attr(x, S):
    try:
        return S.nope
    except AttributeError as e:
        return x, str(e), e.name


@p
def exc_key(x, S):
    try:
        return S.d["nope"]
    except KeyError as e:
        return x, str(e), e.args


@p
def exc_torch(x, S):
    try:
        return x @ torch.ones(7)
    except RuntimeError as e:
        return x, type(e).__name__


@p
def exc_torch_escape(x, S):
    S.l.append(1)
    return x @ torch.ones(7)


@p
def exc_typeerr(x, S):
    try:
        return 1 + "a"
    except TypeError as e:
        return x, str(e)


@p
def exc_callerr(x, S):
    def f(a, b):
        pass

    try:
        f(1)
    except TypeError as e:
        return x, str(e)


@p
def exc_assert(x, S):
    try:
        assert x.shape[0] == 4, f"shape {tuple(x.shape)}"
    except AssertionError as e:
        return x + 1, str(e)


@p
def exc_assert_escape(x, S):
    S.l.append(9)
    assert x.shape[0] == 4, f"shape {tuple(x.shape)}"


@p
def exc_custom(x, S):
    class E(Exception):
        def __init__(s, a):
            super().__init__(a)
            s.a = a

        def __str__(s):
            return "E" + str(s.a)

    try:
        raise E(3)
    except E as e:
        return x * e.a, str(e)


@p
def exc_groups(x, S):
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as e:
        S.l.append(len(e.exceptions))
    except* KeyError as e:
        S.l.append("k")
    return x


@p
def exc_notes(x, S):
    e = ValueError("a")
    e.add_note("hi")
    return x, e.__notes__


@p
def exc_sysexc(x, S):
    import sys

    try:
        raiser(x, 1)
    except ValueError:
        return x, sys.exc_info()[0].__name__


# ---- match
@dataclass
class Pt:
    x: Any
    y: Any = 0


@p
def match_all(x, S):
    out = []
    for v in [
        1,
        -1,
        "a",
        b"b",
        None,
        True,
        2.5,
        [1, 2, 3],
        (1,),
        [],
        {"a": 1, "b": 2},
        Pt(1, 2),
        Pt(x),
        {1, 2},
        [[1, 2], [3]],
        3 + 4j,
        {"k": {"n": [1, {"z": 5}]}},
    ]:
        match v:
            case True:
                out.append("T")
            case None:
                out.append("N")
            case 1 | 2:
                out.append("12")
            case -1:
                out.append("neg")
            case 3 + 4j:
                out.append("cplx")
            case "a":
                out.append("stra")
            case bytes():
                out.append("bytes")
            case float(f):
                out.append(f)
            case []:
                out.append("empty")
            case [a]:
                out.append(a)
            case [[a, b], [c]]:
                out.append((a, b, c))
            case [a, *_, b] if b > 2:
                out.append((a, b))
            case {"k": {"n": [q, {"z": z}]}}:
                out.append((q, z))
            case {"a": a, **r}:
                out.append((a, r))
            case Pt(x=1, y=y):
                out.append(y)
            case Pt(torch.Tensor() as t):
                out.append(t * 2)
            case set():
                out.append("set")
            case _:
                out.append("?")
    return x, out


@p
def match_old(x, S):
    match S.d:
        case {"a": a, "b": [b]}:
            return x * a + b


@p
def match_old2(x, S):
    match S.l:
        case [a, b]:
            return x * a + b


@p
def match_enum(x, S):
    match Col.B:
        case Col.A:
            return x
        case Col.B:
            return x + 1


class Col(enum.Enum):
    A = 1
    B = 2


@p
def match_cls(x, S):
    match S.o:
        case NS(v=v):
            return x * v


# ---- scoping
@p
def global_write(x, S):
    global GN
    GN = GN + 1 if GN < 5 else 0
    G["k"] = 7
    r = G["k"]
    G["k"] = 1
    return x * r


@p
def nonlocal_chain(x, S):
    a = 1

    def f():
        nonlocal a

        def g():
            nonlocal a
            a += 1
            return a

        return g() + g()

    r = f()
    return x * r, a


@p
def closure_escape(x, S):
    n = 0

    def f(y):
        nonlocal n
        n += 1
        return y + n

    S.f = f
    f(x)
    return f(x)


@p
def closure_call_later(x, S):
    y = x * 2

    def f():
        return y

    return f


@p
def class_scope(x, S):
    k = 3

    class A:
        k = 5
        v = [i for i in range(k)]

        def m(self):
            return k

    return x * A().m(), A.v


@p
def comp_shadow(x, S):
    i = 10
    l = [i for i in range(3)]
    return x * i, l, {k: v for k, v in S.d.items()}, {i for i in S.l}


@p
def star_unpack(x, S):
    a, *b = S.l
    *c, d = (1, 2, 3)
    return x * a, b, c, d, [*S.l, *b], {**S.d, "q": 1}, (*S.l,)


@p
def star_call(x, S):
    def f(*a, **k):
        return a, k

    return x, f(*S.l, **{"z": 1}), f(1, *[2], *(3,), q=1, **S.d)


@p
def walrus_comp(x, S):
    r = [(y := x * i) for i in range(3)]
    return r, y


@p
def del_global_name(x, S):
    y = x * 2
    z = y
    del y
    try:
        y
    except UnboundLocalError as e:
        return z, str(e)


@p
def aug(x, S):
    S.l += [3]
    S.d |= {"z": 1}
    S.n += 2
    S.s |= {7}
    S.o.v *= 3
    S.l[0] += 5
    S.d["b"] += [x]
    return x


@p
def chained(x, S):
    a = b = S.l
    a.append(4)
    return x, 1 < len(b) < 9, b is a


@p
def string_fmt(x, S):
    w = 8
    v = 3.14159
    return (
        x,
        f"{v:{w}.2f}|{'a':>4}|{v!r}|{S.n=}|{S.l}|{x.shape}|{1000000:,}|{255:#x}|{'ab':*^6}|{None}|{True:d}",
        "%5.2f %s %r" % (v, "a", "b"),
        "{:>{w}}{k}".format("z", w=3, k=1),
        "{0[1]} {1.v}".format(S.l, S.o),
        string.Template("$a").substitute(a=1),
        f"{x.dtype}",
        f"{torch.device('cpu')}",
    )


@p
def fmt_nested(x, S):
    return x, f"{', '.join(f'{k}={v}' for k, v in S.d.items())}"


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


# ---- containers
@p
def dict_all(x, S):
    d = S.d
    d["c"] = x
    d.setdefault("q", []).append(1)
    r = [d.pop("a"), d.get("zz", 4)]
    d.update(z=1)
    d.update([("y", 2)])
    d.popitem()
    del d["c"]
    r.append(list(d.items()))
    r.append(list(reversed(d.keys())))
    r.append("b" in d.keys())
    r.append(3 in d.values())
    r.append(("b", 3) in d.items())
    r.append({**d} | {"a": 3})
    r.append(d.copy())
    r.append(dict(d, z=5))
    r.append(len(d.keys()))
    r.append(d.keys() | {"u"} == {"u", *d})
    r.append(d.items() - set() == set() if False else 0)
    d.clear()
    d["n"] = 1
    return x, r


@p
def dict_iter_mutate(x, S):
    try:
        for k in S.d:
            S.d[k + "z"] = 1
    except RuntimeError as e:
        return x, str(e)


@p
def dict_order(x, S):
    v = S.d.pop("a")
    S.d["a"] = v
    return x * 1, list(S.d)


@p
def dict_keys_obj(x, S):
    k = (1, "a")
    S.d[k] = x
    S.d[frozenset([1])] = 2
    S.d[1.5] = 3
    S.d[None] = 4
    S.d[Col.A] = 5
    return S.d[k] * 2


class Col(enum.Enum):
    A = 1
    B = 2


@p
def dict_sub(x, S):
    class D(dict):
        def __missing__(s, k):
            return k * 2

        def __getitem__(s, k):
            return ("g", super().__getitem__(k))

        def __setitem__(s, k, v):
            super().__setitem__(k, ("s", v))

    d = D(a=1)
    d["b"] = x
    return d["a"], d["b"], d["zz"], d.get("a"), d


@p
def dict_view_kept(x, S):
    v = S.d.values()
    S.d["new"] = x
    return list(v), len(v)


@p
def list_all(x, S):
    l = S.l
    l.append(x)
    l.extend([3, 4])
    l.insert(0, 9)
    l.remove(1)
    r = [l.pop(), l.pop(0), l.index(2), l.count(3)]
    l.reverse()
    l[0:1] = [7, 8]
    l *= 2
    l += (1,)
    del l[-1]
    r.append(l[1::2])
    r.append(l[-1] is x)
    r += [l.copy()]
    l2 = sorted([3, 1, 2], key=lambda v: -v)
    l3 = [[0] * 2 for _ in range(2)]
    l[:] = [1, 2, x]
    return r, l2, l3


@p
def list_sort(x, S):
    S.l.extend([5, 0])
    S.l.sort()
    S.l.sort(key=lambda v: (v % 2, v), reverse=True)
    return x, sorted(S.d, reverse=True), sorted([(1, x), (0, x)], key=operator.itemgetter(0))[0][0]


@p
def list_alias(x, S):
    a = S.l
    S.m = a
    a.append(x)
    b = [a, a]
    S.bb = b
    return b


@p
def list_cmp(x, S):
    return x, S.l == [1, 2], S.l < [1, 3], [1, [2, 3]] == [1, [2, 3]], (1, 2) + (3,), [1] * 3, 2 in S.l, not S.l


@p
def list_self(x, S):
    l = [1]
    l.append(l)
    return x, len(l), l[1] is l


@p
def list_iter_grow(x, S):
    n = 0
    for v in S.l:
        if n < 3:
            S.l.append(v + 1)
        n += 1
    return x * n


@p
def set_all(x, S):
    s = S.s
    s.add(5)
    s.discard(1)
    s.update({7, 8})
    r = [
        sorted(s),
        s.pop() in {2, 5, 7, 8},
        s | {1} == {*s, 1},
        s & {5},
        s - {5},
        s ^ {1},
        s <= s,
        s < {1},
        s.issubset(range(20)),
        frozenset(s),
    ]
    s.intersection_update({5, 7, 8})
    s.clear()
    s.add(1)
    return x, len(r), {*"ab"} == {"a", "b"}


@p
def deque_all(x, S):
    q = S.dq
    d = deque([1, 2, 3], maxlen=3)
    d.append(x)
    d.extendleft([0])
    d.rotate(-1)
    r = [d.pop(), d.popleft(), list(d), d.maxlen, len(d), d.count(2), 2 in d, d[0], d.index(d[0])]
    d.insert(1, 5)
    d.remove(5)
    d.reverse()
    d.extend([1])
    d += [2]
    d2 = d.copy()
    d.clear()
    return x, r, list(d2)


@p
def deque_old(x, S):
    S.dq.append(x)
    S.dq.popleft()
    return S.dq[0], len(S.dq)


@p
def deque_old_read(x, S):
    return x * sum(S.dq), [v for v in S.dq]


@p
def deque_returned(x, S):
    return deque([x, x * 2], maxlen=5)


@p
def od_all(x, S):
    o = S.od
    o["c"] = x
    o.move_to_end("a")
    r = [list(o), o.popitem(last=False), list(reversed(o)), o == OrderedDict(o), o.pop("c") is x, list(o.items())]
    o.update(z=1)
    del o["z"]
    o.setdefault("w", 5)
    return x, r


@p
def dd_all(x, S):
    S.dd["a"].append(x)
    S.dd["b"]
    d = defaultdict(int)
    d["q"] += 1
    e = defaultdict(lambda: defaultdict(list))
    e[1][2].append(x)
    return x, d, dict(e[1]), e.get(5), len(S.dd)


@p
def dd_returned(x, S):
    d = defaultdict(list)
    d["a"].append(x)
    return d


@p
def counter_all(x, S):
    c = Counter("abca")
    c["z"] += 3
    c.update("aa")
    c.subtract("b")
    r = [
        c.most_common(1),
        c["nope"],
        sorted(c.elements()),
        c + Counter("a"),
        c - Counter("a"),
        c & Counter("aab"),
        c | Counter("q"),
        c.total(),
    ]
    S.c["b"] += 1
    S.c.update({"n": 2})
    return x, r, S.c["a"]


@p
def counter_returned(x, S):
    return Counter("aab"), x


@p
def chainmap_all(x, S):
    c = ChainMap({"a": 1}, S.d)
    c["new"] = x
    n = c.new_child({"a": 5})
    return x, c["b"], n["a"], sorted(map(str, n)), c.maps[0]["a"], "zz" in c, len(c), c.parents["a"], dict(c)["a"]


@p
def chainmap_returned(x, S):
    return ChainMap({"a": x}, S.d)


@p
def userdict(x, S):
    d = UserDict(a=1)
    d["b"] = x
    l = UserList([1])
    l.append(x)
    return d, l, UserString("ab") + "c"


@p
def nt_all(x, S):
    P = namedtuple("P", "a b", defaults=[3])
    q = P(x)
    q2 = q._replace(b=1)
    return x, q.a, q2.b, P._fields, q._asdict(), q[0], P._make([1, 2]), P._field_defaults, q2


@p
def nt_returned(x, S):
    return PT(x, 2), PT(1, x)._replace(a=2)


PT = namedtuple("PT", "a b")


class NT2(NamedTuple):
    a: Any
    b: int = 3

    def f(self):
        return self.b * 2


@p
def nt_method(x, S):
    n = NT2(x)
    return n.f() * x, n


@p
def enum_all(x, S):
    class E(enum.Enum):
        A = enum.auto()
        B = enum.auto()

        @classmethod
        def first(cls):
            return cls.A

    F_ = enum.Flag("F_", "X Y")
    return (
        x,
        E.A.name,
        E(2),
        E["B"],
        list(E)[0].value,
        E.first().name,
        E.A == E.A,
        E.A is E.B,
        len(E),
        (F_.X | F_.Y).value,
        F_.X in (F_.X | F_.Y),
        isinstance(E.A, E),
        E.__members__["A"].value,
        hash(E.A) == hash(E.A),
        repr(Col.A),
        str(Col.B),
        f"{Col.A}",
    )


@p
def strenum(x, S):
    class SE(enum.StrEnum):
        A = "a"

    class IE(enum.IntEnum):
        A = 3

    return x * IE.A, SE.A + "b", IE.A + 1, {"a": 1}[SE.A], SE("a")


@p
def mappingproxy(x, S):
    m = types.MappingProxyType(S.d)
    return x, m["a"], list(m), dict(m)


@p
def slices(x, S):
    s = slice(1, None)
    return (
        x[s],
        s.start,
        s.indices(5),
        x[..., s],
        x[(slice(None), 1)],
        x[[0, 2]],
        x[[0, 1], [1, 2]],
        x[torch.tensor([True, False, True])] if False else 0,
    )


@p
def bytes_ops(x, S):
    b = bytearray(b"ab")
    b.append(99)
    b[0] = 1
    m = memoryview(b)[1:]
    return (
        x,
        bytes(b),
        m.tobytes(),
        b"a" + b"b",
        b"abc".hex(),
        int.from_bytes(b"\x01\x02", "big"),
        (5).to_bytes(2, "little"),
    )


@p
def range_ops(x, S):
    r = range(10, 0, -3)
    return x, list(r), len(r), r[1], 4 in r, r.index(7), r[::-1], list(reversed(r)), r == range(10, 0, -3), r.start


# ---- functions
@p
def fn_partial(x, S):
    f = functools.partial(lambda a, b, *c, k=0: (a, b, c, k), 1, k=3)
    return x, f(2), f(2, 4, k=9), f.func(1, 2), f.args, f.keywords, functools.partial(f, 7)(8)


@p
def fn_partial_ret(x, S):
    return functools.partial(torch.add, x), functools.partial(max, 1)(2)


@p
def fn_partialmethod(x, S):
    class A:
        def f(s, a, b):
            return (a, b)

        g = functools.partialmethod(f, 1)

    return x, A().g(2)


@p
def fn_lru(x, S):
    @functools.lru_cache(maxsize=2)
    def f(n):
        S.n += 1
        return n * 2

    return x, f(1), f(1), f(2), S.n, f.cache_info().hits


@functools.lru_cache(None)
def glru(n):
    return n * 3


@p
def fn_lru_global(x, S):
    return x * glru(2), glru(2)


@functools.lru_cache(None)
def glru_t(n):
    return torch.ones(n)


@p
def fn_lru_tensor(x, S):
    return x * glru_t(4)


@p
def fn_cached_prop_old(x, S):
    S.o2 = CP()
    return x * S.o2.cp, S.o2.cp


class CP:
    v = 2

    @functools.cached_property
    def cp(self):
        self.v += 1
        return self.v


@p
def fn_singledispatch(x, S):
    return x, sd(1), sd("a"), sd([]), sd(x), SDM().f(1), SDM().f("s")


@functools.singledispatch
def sd(a):
    return "base"


@sd.register
def _(a: int):
    return "int"


@sd.register(list)
def _(a):
    return "list"


@sd.register(torch.Tensor)
def _(a):
    return a * 2


class SDM:
    @functools.singledispatchmethod
    def f(self, a):
        return "b"

    @f.register
    def _(self, a: int):
        return "i"


@p
def fn_total_ordering(x, S):
    @functools.total_ordering
    class A:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

        def __lt__(s, o):
            return s.v < o.v

    return x, A(1) >= A(0), A(1) <= A(0), max(A(1), A(5)).v


@p
def fn_wraps(x, S):
    def deco(n):
        def d(f):
            @functools.wraps(f)
            def w(*a, **k):
                S.l.append(n)
                return f(*a, **k)

            w.extra = n
            return w

        return d

    @deco(1)
    @deco(2)
    def g(a):
        "doc"
        return a + 1

    return g(x), g.__name__, g.__doc__, g.extra, g.__wrapped__.extra, inspect.unwrap(g).__name__


@p
def fn_reduce(x, S):
    return functools.reduce(lambda a, b: a * b, [x, x, 2]), functools.reduce(operator.add, [[1], [2]], [])


@p
def fn_attrs(x, S):
    def f(a: int, b: str = "z", *, c=1) -> int: ...

    f.q = 5
    return (
        x,
        f.__defaults__,
        f.__kwdefaults__,
        f.__annotations__["a"],
        f.__code__.co_varnames[:2],
        f.__qualname__,
        f.__dict__,
        f.__closure__,
    )


@p
def fn_inspect(x, S):
    def f(a, b=1, *c, d, **e):
        pass

    s = inspect.signature(f)
    b = s.bind(1, 2, 3, d=4, z=5)
    b.apply_defaults()
    return (
        x,
        str(s),
        b.args,
        b.kwargs,
        inspect.getfullargspec(f).args,
        inspect.ismethod(f),
        inspect.isclass(NS),
        inspect.isgeneratorfunction(f),
        list(inspect.signature(nn.Linear.forward).parameters),
    )


@p
def fn_method_bound(x, S):
    m = S.l.append
    m(x)
    n = x.add
    g = S.o.__class__
    return n(1), g is NS, m.__name__, m.__self__ is S.l


@p
def fn_setdefaults(x, S):
    def f(a=1):
        return a

    f.__defaults__ = (5,)
    return x, f()


@p
def fn_callable_inst(x, S):
    class A:
        def __call__(s, a, *, k=1):
            return a * k

    return A()(x, k=3), list(map(A(), [1, 2])), callable(A())


@p
def fn_mutual(x, S):
    def ev(n):
        return True if n == 0 else od(n - 1)

    def od(n):
        return False if n == 0 else ev(n - 1)

    return x, ev(10)


@p
def fn_recursion_tensor(x, S):
    def f(d, y):
        return y if d == 0 else f(d - 1, y.sin()) + f(d - 1, y.cos())

    return f(3, x)


@p
def fn_default_mutable(x, S):
    def f(a, l=[]):
        l.append(a)
        return l

    f(1)
    return x, f(2)


def gdm(a, l=[]):
    l.append(a)
    return len(l)


@p
def fn_default_global(x, S):
    gdm(1)
    r = gdm(2)
    gdm.__defaults__[0].clear()
    return x * r


@p
def fn_lambda_sort(x, S):
    d = {"b": 2, "a": 1}
    return (
        x,
        sorted(d.items(), key=lambda kv: kv[1]),
        min(d, key=d.get),
        max(d, key=d.__getitem__),
        list(map(str.upper, d)),
        list(filter(None.__ne__, [None, 1])),
        sorted("bA", key=str.lower),
    )


@p
def fn_map_multi(x, S):
    return (
        list(map(lambda a, b: a * b, [x, x], [1, 2])),
        list(map(torch.sin, [x])),
        tuple(map(int, "12")),
        dict(map(lambda k: (k, k), "ab")),
        sum(map(len, ["a", "bb"])),
        any(map(bool, [0, 1])),
        list(map(operator.mul, [1], [2])),
        list(map(S.d.get, ["a", "z"])),
    )


@p
def fn_any_all(x, S):
    return (
        x,
        any(v > 1 for v in S.l),
        all(isinstance(v, int) for v in S.l),
        any([]),
        sum((v for v in S.l), 10),
        max((len(k) for k in S.d), default=0),
        min([], default=3),
        sum([[1], [2]], []),
        next((v for v in S.l if v > 5), None),
    )


@p
def builtins_misc(x, S):
    return (
        x,
        abs(-2),
        bin(3),
        chr(97),
        divmod(7, 2),
        format(3.5, ".2f"),
        hash(1),
        hex(5),
        isinstance(x, (int, torch.Tensor)),
        issubclass(bool, int),
        oct(8),
        ord("a"),
        pow(2, 3, 5),
        repr("a"),
        round(2.5),
        round(1.234, 2),
        sorted({3, 1}),
        type(3)("4"),
        zip([1], [2]).__next__(),
        list(enumerate("ab", start=1)),
        list(reversed("ab")),
        vars(S.o),
        dir(S.o)[-1],
        callable(3),
        id(x) == id(x),
        int("ff", 16),
        float("inf"),
        complex("1+2j"),
        bool([]),
        str(b"a", "utf8"),
        ascii("é"),
        list(zip("ab", [1, 2], strict=True)),
        getattr(S, "nope", None),
        object() is None,
        eval("1+1") if False else 0,
        print,
    )


@p
def itertools_more(x, S):
    a, b = itertools.tee([1, 2, 3])
    c = itertools.cycle("ab")
    return (
        x,
        list(a),
        next(b),
        [next(c) for _ in range(3)],
        list(itertools.compress("abc", [1, 0, 1])),
        list(itertools.dropwhile(lambda v: v < 2, [1, 2, 1])),
        list(itertools.filterfalse(None, [0, 1])),
        list(itertools.chain.from_iterable([[1], [2]])),
        list(itertools.combinations_with_replacement("ab", 2)),
        list(itertools.accumulate([1, 2, 3], operator.mul, initial=1)),
        [(k, list(g)) for k, g in itertools.groupby([1, 1, 2], key=lambda v: v)],
        list(itertools.islice("abcdef", 1, 5, 2)),
        list(itertools.starmap(lambda a, b: a + b, [(1, 2)])),
        list(itertools.zip_longest("ab", "c", fillvalue="-")),
        list(itertools.product([1, 2], repeat=2)),
        list(itertools.repeat(x, 2)),
    )


@p
def itertools_tensor(x, S):
    return (
        [a * b for a, b in itertools.product([x, x + 1], [1, 2])],
        list(itertools.accumulate([x, x, x])),
        [c + d for c, d in itertools.pairwise([x, x + 1, x + 2])],
        sum(itertools.starmap(torch.mul, [(x, 2), (x, 3)])),
    )


@p
def operator_misc(x, S):
    return (
        x,
        operator.itemgetter(1, 0)([1, 2]),
        operator.attrgetter("o.v")(S),
        operator.methodcaller("get", "a")(S.d),
        operator.add(1, 2),
        operator.getitem(S.l, 0),
        operator.contains(S.l, 1),
        operator.truth([]),
        operator.is_(x, x),
        operator.neg(x),
        operator.matmul(x, x.T),
        operator.iadd([1], [2]),
        operator.index(3),
        operator.length_hint([1]),
        operator.concat([1], [2]),
        operator.not_(0),
        operator.indexOf(S.l, 2),
        operator.countOf(S.l, 1),
    )


@p
def operator_setitem(x, S):
    operator.setitem(S.d, "z", x)
    operator.delitem(S.d, "a")
    operator.setitem(S.l, 0, 5)
    return x


# ---- contextlib
@contextlib.contextmanager
def cm(S, n):
    S.l.append(("in", n))
    try:
        yield n
    except KeyError:
        S.l.append("caught")
    finally:
        S.l.append(("out", n))


@p
def ctx_all(x, S):
    with cm(S, 1) as a, cm(S, 2) as b:
        x = x * b
    with cm(S, 3):
        raise KeyError(1)
    with contextlib.ExitStack() as st:
        v = st.enter_context(cm(S, 4))
        st.callback(S.l.append, 5)
        st.push(lambda *a: S.l.append("p"))
        st2 = st.pop_all()
    st2.close()
    with contextlib.suppress(ZeroDivisionError):
        1 / 0
    with contextlib.nullcontext(3) as n:
        x = x + n
    return x


@p
def ctx_decorator(x, S):
    @cm(S, 7)
    def f(y):
        return y * 2

    return f(x)


@p
def ctx_closing(x, S):
    class C:
        def close(s):
            S.l.append("closed")

    with contextlib.closing(C()):
        x = x + 1
    return x


@p
def ctx_class_dec(x, S):
    class A(contextlib.ContextDecorator):
        def __enter__(s):
            S.l.append("e")
            return s

        def __exit__(s, *e):
            S.l.append("x")
            return False

    @A()
    def f(y):
        return y + 1

    return f(x)


@p
def ctx_return_inside(x, S):
    with cm(S, 1):
        for i in range(3):
            with cm(S, i + 10):
                if i == 1:
                    return x * i


@p
def ctx_abstract(x, S):
    class A(contextlib.AbstractContextManager):
        def __exit__(s, *a):
            S.n += 1

    with A():
        x = x * 2
    return x


@p
def ctx_exc_escape(x, S):
    with cm(S, 1):
        x = x * 2
        raise ValueError("esc")


@p
def ctx_chdir(x, S):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("a")
    return x


# ---- copy
@p
def copy_all(x, S):
    a = copy.copy(S.l)
    b = copy.deepcopy(S.d)
    c = copy.deepcopy(S.o)
    d = copy.copy(S.o)
    e = copy.deepcopy([a, a])
    b["b"].append(5)
    c.v = 9
    d.v = 8
    return x, a, b, c, d, e[0] is e[1]


@p
def copy_tensor(x, S):
    return copy.copy(x) * 2


@p
def copy_deep_tensor(x, S):
    return copy.deepcopy(x) * 2


@p
def copy_custom(x, S):
    class A:
        def __init__(s):
            s.v = 1

        def __copy__(s):
            r = A()
            r.v = 5
            return r

        def __deepcopy__(s, m):
            r = A()
            r.v = 6
            return r

    return x, copy.copy(A()).v, copy.deepcopy(A()).v


# ---- typing/abc/logging/others
@p
def typing_all(x, S):
    return (
        x,
        cast(int, 3),
        get_origin(List[int]),
        get_args(Dict[str, int]),
        Optional[int] == Union[int, None],
        isinstance([], list),
        list[int].__origin__,
        get_type_hints(th),
        TYPE_CHECKING,
        int | str,
        isinstance(3, int | str),
        Literal["a"].__args__,
    )


def th(a: int, b: "str") -> float: ...
@p
def logging_all(x, S):
    l = logging.getLogger("zz")
    l.setLevel(logging.ERROR)
    l.info("a %s", 1)
    l.debug("b")
    return x, l.isEnabledFor(10), l.name


@p
def logging_warn(x, S):
    logging.getLogger("quiet").warning("no")
    return x + 1


logging.getLogger("quiet").addHandler(logging.NullHandler())
logging.getLogger("quiet").propagate = False


@p
def warn_in(x, S):
    warnings.warn("deprecated", DeprecationWarning, stacklevel=2)
    return x


@p
def re_all(x, S):
    return (
        x,
        re.match(r"(\w+)\.(\d+)", "lay.12").groups(),
        re.sub("a", "b", "aa"),
        re.findall(r"\d", "1a2"),
        re.compile("q").pattern,
        re.split(",", "a,b"),
        re.search("z", "a"),
        [m.group() for m in re.finditer("a", "aba")],
        re.fullmatch("a+", "aaa").span(),
    )


@p
def json_all(x, S):
    return x, json.dumps({"a": [1, 2]}), json.loads('{"b":1}')


@p
def str_all(x, S):
    s = "Hello World"
    return (
        x,
        s.lower(),
        s.split(),
        s.title(),
        s.count("l"),
        s.find("W"),
        s.center(20, "-"),
        s.zfill(15),
        s.isalpha(),
        s.translate(str.maketrans("l", "L")),
        s.encode().decode(),
        s.rsplit("o", 1),
        s.casefold(),
        s.swapcase(),
        s.expandtabs(),
        s.removeprefix("Hel"),
        ",".join(S.d),
        s[::2],
        s * 2,
        "a" in s,
        s.format(),
        s.splitlines(),
        s > "A",
        textwrap.dedent(" a"),
        s.ljust(3),
        s.rpartition(" "),
    )


@p
def time_read(x, S):
    t = time.perf_counter()
    y = x * 2
    S.dt = (time.perf_counter() - t) < 10
    return y


@p
def random_read(x, S):
    random.seed(3)
    return x * random.random(), random.randint(1, 5), random.choice([1, 2])


@p
def np_consts(x, S):
    return x * np.pi, np.sqrt(2.0), np.prod([1, 2]), int(np.ceil(2.3)), np.float32(1.5) * 2


@p
def np_arr(x, S):
    a = np.arange(3)
    return x.sum() + torch.from_numpy(a).sum(), a * 2


@p
def sysinfo(x, S):
    return (
        x,
        sys.version_info >= (3, 8),
        sys.maxsize > 0,
        os.environ.get("NOPE", "d"),
        os.path.join("a", "b"),
        sys.platform,
    )


@p
def threads(x, S):
    l = threading.Lock()
    with l:
        y = x * 2
    return y, threading.current_thread().name


@p
def locals_globals(x, S):
    a = 1
    return x, sorted(locals())[:2], "G" in globals()


@p
def exec_eval(x, S):
    return x, eval("1+2"), eval("a*2", {"a": 3})


@p
def type3(x, S):
    A = type("A", (NS,), {"v": 3, "f": lambda s: s.v})
    return x, A().f(), types.new_class("B", (A,)).__name__, A.__mro__[1].__name__


@p
def setattr_dyn(x, S):
    for n in "ab":
        setattr(S, n, x)
    delattr(S, "a")
    S.__dict__["q"] = 5
    vars(S)["w"] = 6
    return x, hasattr(S, "a"), getattr(S, "b") * 2, S.q, S.__dict__.get("n")


@p
def async_decl(x, S):
    async def f():
        return x * 2

    c = f()
    try:
        c.send(None)
    except StopIteration as e:
        return e.value


# ---- torch


@p
def t_grad(x, S):
    return torch.func.grad(lambda a: (a.sin() * a).sum())(x), torch.func.grad_and_value(lambda a: (a**2).sum())(x)


@p
def t_vjp(x, S):
    out, back = torch.func.vjp(torch.sin, x)
    return out, back(x)


@p
def t_jacrev(x, S):
    return torch.func.jacrev(lambda a: a[0].sin() * a[1])(x)


@p
def t_grad_of_vmap(x, S):
    return torch.func.grad(lambda a: torch.vmap(lambda r: (r * r).sum())(a).sum())(x)


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, f, types, args=(), kwargs=None):
        out = f(*args, **(kwargs or {}))
        return out * 2 if f is torch.add else out


@p
def t_function_mode(x, S):
    with Doubling():
        y = torch.add(x, 1)
    return y, torch.add(x, 1)


@p
def t_cudnn_flags(x, S):
    with torch.backends.cudnn.flags(enabled=False, benchmark=True):
        y = x * 2, torch.backends.cudnn.enabled
    return y, torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark


@p
def t_record_function(x, S):
    with torch.profiler.record_function("part"):
        return x * 2


@p
def t_flag_of_a_leaf(x, S):
    return x + torch.zeros_like(x).requires_grad_()


@p
def t_constant_tolist(x, S):
    shape = torch.cat([torch.as_tensor([-1]), torch.as_tensor(x.size()[1:])])
    return x.reshape(shape.tolist()), torch.tensor([[1, 2], [3, 4]]).tolist()


@p
def t_detach(x, S):
    y = x.detach()
    S.y = y
    return y is x, x, y


@p
def t_raises_while_it_runs(x, S):
    """A graph that raises: effects up to there, and the program's own traceback."""
    S.n += 1
    y = F.embedding(torch.full((2,), 5) + S.t.sum().long(), x)
    S.n += 10
    return y


# side effects & aliasing
@p
def s_list_alias_write(x, S):
    a = S.l
    S.m = a
    a[0] = x
    S.m.append(3)
    b = S.l[:]
    b.append(9)
    return b[0] is S.l[0], len(S.m)


@p
def s_nested(x, S):
    S.d["b"].append(x)
    S.d["b"][0] = S.d["b"]
    return x, S.d["b"][0] is S.d["b"]


@p
def s_same_obj_two_paths(x, S):
    S.o2 = S.o
    S.o2.v = 7
    S.o.v += 1
    return x * S.o2.v


@p
def s_swap_attrs(x, S):
    S.l, S.d = S.d, S.l
    return x


@p
def s_del_all(x, S):
    for k in list(vars(S)):
        delattr(S, k)
    return x


@p
def s_vars_update(x, S):
    vars(S).update(q=x, n=9)
    S.__dict__["z"] = 1
    return x, sorted(vars(S))[0]


@p
def s_dict_swap(x, S):
    S.__dict__ = dict(S.__dict__, new=1)
    return x


@p
def s_class_swap(x, S):
    S.o.__class__ = Other
    return x, S.o.f()


class Other(NS):
    def f(s):
        return s.v


@p
def s_class_attr(x, S):
    Other.k = x.sum()
    r = Other.k * 1
    del Other.k
    return r


@p
def s_class_attr_inherit(x, S):
    Other.kk = 1
    A = type("A", (Other,), {})
    r = A().kk
    del Other.kk
    return x * r, hasattr(A, "kk")


@p
def s_fn_attr(x, S):
    gf.count = getattr(gf, "count", 0) + 1
    r = gf.count
    gf.count = 0
    return x * r


def gf():
    pass


@p
def s_default_mut(x, S):
    return x * len(gd(1)), len(gd.__defaults__[0]) and gd.__defaults__[0].clear()


def gd(a, l=[]):
    l.append(a)
    return l


@p
def s_closure_list(x, S):
    r = []

    def f():
        r.append(x)
        return len(r)

    f()
    S.f = f
    return f()


@p
def s_try_partial(x, S):
    try:
        S.n = 1
        S.l.append(1)
        S.d["x"][0]
        S.n = 2
    except KeyError:
        S.l.append(2)
    return x


@p
def s_setitem_tensor(x, S):
    x[0] = S.t.sum()
    S.t[:] = 1
    S.v = x[1]
    S.v += 1
    return x


@p
def s_inplace_alias(x, S):
    y = x
    y += 1
    z = y.view(-1)
    z *= 2
    return x is y, z


@p
def s_return_self(x, S):
    return x, [x], S.t, S.t.view(-1)


@p
def s_two_views(x, S):
    a = x[0]
    b = x[:, 0]
    a.fill_(3)
    return b * 1, a, b


@p
def s_detach_write(x, S):
    x.detach().add_(1)
    S.t.data.mul_(2) if False else None
    return x


@p
def s_expand_write(x, S):
    y = x[0:1].expand(3, 4).clone()
    y[1] = 0
    return y


@p
def s_out_alias(x, S):
    y = x * 2
    return y, y[0], y.t(), {"k": y}


@p
def s_counter_state(x, S):
    S.c.update(x.shape)
    S.c["a"] -= 1
    return x, S.c.most_common(1)


@p
def s_od_state(x, S):
    S.od.move_to_end("a")
    S.od["z"] = x
    S.od.popitem(last=False)
    return list(S.od)


@p
def s_dd_state(x, S):
    S.dd[1].append(x)
    S.dd.default_factory
    S.dd.get(5)
    return len(S.dd), 5 in S.dd


@p
def s_dq_state(x, S):
    S.dq.extend([x, 5, 6])
    S.dq.rotate(1)
    S.dq[0] = 9
    return list(S.dq)[0], S.dq.maxlen


@p
def s_set_state(x, S):
    S.s.add(x.shape[0])
    S.s.discard(1)
    S.s |= {8}
    S.s ^= {2}
    return sorted(S.s), x


@p
def s_iter_state(x, S):
    for i, k in enumerate(list(S.d)):
        S.d[k] = i
    return x


@p
def s_sorted_inplace(x, S):
    S.l.sort(key=lambda v: -v)
    S.l.reverse()
    del S.l[0]
    S.l.insert(0, x.shape)
    return x


@p
def s_list_slice(x, S):
    S.l[0:1] = [x, x]
    S.l[::2] = [1, 2]
    del S.l[1:2]
    return x


@p
def s_list_mul(x, S):
    S.l *= 2
    S.l += S.l
    return x


@p
def s_pop_default(x, S):
    a = S.d.pop("zz", None)
    b = S.d.pop("a")
    S.d["a"] = b
    return x, list(S.d)


@p
def s_setdefault(x, S):
    S.d.setdefault("a", 5)
    S.d.setdefault("q", x)
    return S.d["q"]


@p
def s_update_order(x, S):
    S.d.update(c=1, a=2)
    S.d |= {"b": 9, "z": 1}
    return x, list(S.d.items())


@p
def s_popitem(x, S):
    k = S.d.popitem()
    S.d["new"] = k
    return x


@p
def s_clear_refill(x, S):
    c = dict(S.d)
    S.d.clear()
    S.d.update(reversed(list(c.items())))
    return x


@p
def s_attr_del_readd(x, S):
    v = S.n
    del S.n
    S.n = v + 1
    return x, list(vars(S))[-1]


@p
def s_attr_new_order(x, S):
    S.z1 = 1
    S.z0 = 2
    del S.z1
    S.z1 = 3
    return x


@p
def s_tmp_attr(x, S):
    S.tmp = x
    y = S.tmp * 2
    del S.tmp
    return y


@p
def s_global_tmp(x, S):
    global TMPG
    TMPG = x
    y = TMPG * 2
    del TMPG
    return y


@p
def s_slots_state(x, S):
    S.sl = SlS()
    S.sl.a = x
    S.sl.b = 1
    del S.sl.b
    return hasattr(S.sl, "b")


@p
def s_slots_old(x, S):
    S.sl.a += 1
    S.sl.b = x
    return x * S.sl.a


@p
def s_prop_set(x, S):
    S.pr.v = x
    S.pr.v
    return S.pr.v * 2


@p
def s_delattr_only(x, S):
    S.da.v = 5
    S.da.w = x
    del S.da.v
    return S.da.w * 2


@p
def s_dictsub_del(x, S):
    S.ds["a"] = x
    del S.ds["a"]
    S.ds["z"] = 1
    return len(S.ds)


@p
def s_listsub(x, S):
    S.ls.append(x)
    S.ls[0] = 5
    S.ls.extend([1])
    return len(S.ls)


@p
def s_exc_midway_in_callee(x, S):
    def g():
        S.n = 5
        S.l.append(1)
        raise ValueError

    try:
        g()
    except ValueError:
        S.l.append(S.n)
    S.d["k"] = x
    raise KeyError("end")


@p
def s_gen_effects(x, S):
    def g():
        for i in range(3):
            S.l.append(i)
            yield x * i

    return sum(g()), [a for a in zip(g(), range(1))]


@p
def s_reentrant(x, S):
    def f(n):
        S.n += 1
        return x if n == 0 else f(n - 1) * S.n

    return f(3)


@p
def s_bound_methods(x, S):
    S.app = S.l.append
    S.app(5)
    f = S.d.__setitem__
    f("zz", x)
    return len(S.l)


@p
def s_tuple_of_lists(x, S):
    t = (S.l, S.l)
    t[0].append(x)
    S.t2 = t
    return t[0] is t[1]


@p
def s_copy_state(x, S):
    S.cp = copy.copy(S.o)
    S.cp.v = 9
    S.dc = copy.deepcopy(S.d)
    S.dc["b"].append(1)
    return x


@p
def s_str_key_interned(x, S):
    setattr(S, "".join(["a", "b"]), x)
    return getattr(S, "ab") * 2


@p
def s_module_attr(x, S):
    MOD.v = x
    r = MOD.v * 2
    del MOD.v
    return r


MOD = types.ModuleType("MOD")


@p
def s_weird_hash(x, S):
    S.d[1] = "int"
    S.d[1.0] = "float"
    S.d[True] = "bool"
    return x, S.d[1], len(S.d)


@p
def s_nan_key(x, S):
    n = float("nan")
    S.d[n] = 1
    return x, n in S.d, S.d.get(float("nan"))


@p
def s_none_key(x, S):
    S.d[None] = x
    S.d[...] = 1
    S.d[b"a"] = 2
    S.d[(1, (2,))] = 3
    return S.d[(1, (2,))]


@p
def s_tensor_key(x, S):
    S.d[x] = 1
    return S.d[x], x in S.d


# ---- code and classes made inside
@p
def in_exec_scope(x, S):
    k = 3
    d = {"x": x}
    exec("y = x * 2\nz = [i for i in range(3)]\nclass A:\n    k = 3\ndel z", {}, d)
    exec("G['made'] = 5\nGMADE = 3", globals())
    made = globals().pop("GMADE") * G.pop("made")
    try:
        exec("a b")
    except SyntaxError as e:
        return d["y"] * d["A"].k * made, sorted(d), e.msg, eval("x * k + len(S.l)"), eval(compile("k + 1", "q", "eval"))


@p
def in_dataclasses(x, S):
    @dataclass(order=True, frozen=True)
    class P:
        a: int
        b: list = field(default_factory=list, compare=False)
        c: InitVar[int] = 3

        def __post_init__(self, c):
            object.__setattr__(self, "d", c)

    @dataclass(slots=True)
    class Q:
        t: torch.Tensor

    q, r = P(1), P(2, [1], c=5)
    o = dataclasses.replace(Q(x), t=x * q.d)
    return o.t * r.d, q < r, dataclasses.asdict(r), hash(q) == hash(P(1)), repr(r), sorted([r, q])[0].a


@p
def in_enums_and_tuples(x, S):
    class E(enum.Enum):
        A = enum.auto()
        B = enum.auto()

        def __str__(self):
            return self.name.lower()

    P = namedtuple("P", ["a", "b"], defaults=[3])
    q = P(x)
    a, b = q._replace(b=4)
    return a * b * E["B"].value, q.b, P._fields, str(E.A), len(list(E)), E(1) is E.A


@p
def in_abstract_classes(x, S):
    class M(type):
        def __new__(m, n, b, d, **k):
            return super().__new__(m, n, b, d | {"extra": 5})

        def __init__(c, n, b, d, **k):
            super().__init__(n, b, d)
            c.inited = k.get("z")

    class A(metaclass=M, z=9):
        pass

    class B(abc.ABC):
        @property
        @abc.abstractmethod
        def k(self): ...

    class C(B):
        k = 3

    class D:
        seen = ()

        def __set_name__(self, o, n):
            o.seen = o.seen + (n,)

    B.register(D)
    try:
        B()
    except TypeError as e:
        S.l.append(str(e))
    return x * C().k * A.extra * A.inited, isinstance(D(), B), issubclass(C, B), isinstance(3, B)


@p
def in_modules(x, S):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(4, 3)
            nn.init.ones_(self.l.weight)
            self.w = nn.Parameter(torch.full((3,), 2.0))
            self.register_buffer("q", None)

        def forward(self, x):
            return self.l(x) * self.w

    m = M().eval()
    n = copy.deepcopy(m)
    n.w.mul_(2)
    y = nn.Sequential(nn.ReLU(), nn.LayerNorm(3))(m(x) + n(x))
    return y.detach(), [k for k, _ in m.named_parameters()], m.w.is_leaf, type(m.w).__name__


@p
def in_autograd_function(x, S):
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return a * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3

    with torch.enable_grad():
        y = x.detach().requires_grad_()
        return torch.autograd.grad(Fn.apply(y).sum(), y)[0]


@p
def own_random(x, S):
    r = random.Random(5)
    l = [1, 2, 3]
    r.shuffle(l)
    return x * r.random() + r.randint(0, 9), l, r.sample(range(9), 2), r.gauss(0, 1)


@p
def result_with_attributes(x, S):
    y = x + 1
    y.tag, y.other = "q", x * 2
    return y


@p
def frames_of_its_own(x, S):
    f = sys._getframe()

    def who():
        return sys._getframe(1).f_code.co_name

    return x + 1, f.f_code.co_name, who(), f.f_globals is globals()


RANDOM = random.random


@p
def random_of_a_module(x, S):
    random.seed(3)
    return x * RANDOM() + random.randint(0, 5)
