"""Graph breaks with all sorts of things live, for test_language_programs.py."""
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
from outcomes import State as NS
from outcomes import lines
from torch import nn

import flashover

PROGRAMS = []
CALLS = []


def p(f):
    PROGRAMS.append(f)
    return f


def brk(*a):
    flashover.graph_break()


CALLS = []


@flashover.skip
def skipped(f, *a):
    return f(*a)


@flashover.disable
def disabled(f, *a):
    return f(*a)


@flashover.disable(recursive=False)
def disabled_nr(f, *a):
    return f(*a)


# breaks with all sorts of things live
@p
def b_slots(x, S):
    s = Sl(x * 2, 3)
    brk()
    return s.a + s.b


class Sl:
    __slots__ = ("a", "b")

    def __init__(s, a, b):
        s.a, s.b = a, b


@p
def b_except(x, S):
    try:
        raise ValueError("a")
    except ValueError as e:
        y = x * 2
        brk()
        return y + 1, str(e), lines(e.__traceback__)


def deepr(x):
    y = x.sin()
    raise KeyError("deep")


@p
def b_except_deep(x, S):
    try:
        deepr(x)
    except KeyError as e:
        brk()
        S.l.append(lines(e.__traceback__))
        try:
            raise ValueError("second")
        except ValueError as e2:
            brk()
            S.l.append(repr(e2.__context__))
    return x * 2


@p
def b_except_reraise(x, S):
    try:
        try:
            deepr(x)
        except KeyError:
            y = x * 2
            brk()
            S.y = y * 3
            raise
    except KeyError as e:
        return lines(e.__traceback__), x


@p
def b_except_escape(x, S):
    try:
        deepr(x)
    except KeyError as e:
        y = x * 2
        brk()
        S.y = y * 3
        raise ValueError("out") from e


@p
def b_finally(x, S):
    try:
        y = x * 2
        raise ValueError(1)
    except ValueError:
        pass
    finally:
        brk()
        y = y + 1
    return y


@p
def b_finally_exc(x, S):
    try:
        try:
            deepr(x)
        finally:
            y = x + 1
            brk()
            S.y = y
    except KeyError:
        return x * 3


@p
def b_with_exc(x, S):
    class M:
        def __enter__(s):
            return s

        def __exit__(s, t, v, tb):
            brk()
            S.l.append(t and t.__name__)
            return True

    with M():
        deepr(x)
    return x * 2


@p
def b_itertools(x, S):
    out = x
    for i, j in itertools.product([1, 2], [3, 4]):
        out = out * i + j
        brk()
    for i in itertools.chain([1], [2]):
        out = out + i
        brk()
    c = itertools.count(5)
    next(c)
    for a, b in zip(itertools.cycle([1, 2]), itertools.islice(c, 3)):
        out = out + a * b
        brk()
    for a in itertools.accumulate([1, 2, 3]):
        out = out - a
        brk()
    for a, b in itertools.zip_longest([1], [2, 3], fillvalue=0):
        out = out - a + b
        brk()
    for a in itertools.combinations([1, 2, 3], 2):
        out = out + sum(a)
        brk()
    for a in itertools.takewhile(lambda v: v < 3, [1, 2, 3, 4]):
        out = out + a
        brk()
    for a in itertools.starmap(operator.mul, [(1, 2), (3, 4)]):
        out = out + a
        brk()
    for k, g in itertools.groupby([1, 1, 2]):
        out = out + k
        brk()
    for a in itertools.repeat(2, 2):
        out = out + a
        brk()
    for a in itertools.permutations([1, 2]):
        out = out + a[0]
        brk()
    for a in itertools.filterfalse(None, [0, 1]):
        out = out + a
        brk()
    for a in itertools.compress([1, 2, 3], [1, 0, 1]):
        out = out + a
        brk()
    return out


@p
def b_iters(x, S):
    out = x
    for i, v in enumerate([1, 2]):
        out = out + v
        brk()
    for i in reversed([1, 2]):
        out = out * i
        brk()
    for k, v in S.d.items():
        out = out + len(k)
        brk()
    for k in {1, 2}:
        out = out + k
        brk()
    for v in map(lambda q: q * 2, [1, 2]):
        out = out + v
        brk()
    for v in filter(None, [0, 1]):
        out = out + v
        brk()
    for c in "ab":
        out = out + ord(c)
        brk()
    for v in (q * 2 for q in [1, 2]):
        out = out + v
        brk()
    for v in iter(lambda l=[1, 2, 3]: l.pop(), 1):
        out = out + v
        brk()
    for v in deque([1, 2]):
        out = out + v
        brk()
    for v in S.l:
        out = out + v
        brk()
    for v in sorted(S.s):
        out = out + v
        brk()
    for v in S.od:
        out = out + len(v)
        brk()
    return out


@p
def b_containers(x, S):
    d = defaultdict(list)
    d["a"].append(x * 2)
    q = deque([x], maxlen=2)
    c = Counter("aab")
    od = OrderedDict(z=1, a=2)
    od.move_to_end("z")
    s = {1, 2}
    f = frozenset([3])
    nt = PT(x, 1)
    dv = S.d.values()
    pt = functools.partial(torch.add, x)
    ig = operator.itemgetter(0)
    cm = ChainMap({"a": 1}, S.d)
    e = ValueError("q")
    r = range(3)
    sl = slice(1, 2)
    ds = DS(x + 1)
    df = DF(3)
    p2 = Sub([1, x])
    ss = SubStr("abc")
    si = SubInt(5)
    brk()
    d["b"].append(1)
    q.append(x + 1)
    q.append(x + 2)
    c.update("b")
    od["n"] = 1
    return (
        d,
        q,
        c,
        od,
        s,
        f,
        nt,
        list(dv)[0],
        pt(1),
        ig([5]),
        cm["b"],
        str(e),
        r,
        x[sl],
        ds,
        df,
        p2,
        ss.upper(),
        ss.tag if hasattr(ss, "tag") else 0,
        si + 1,
        type(si).__name__,
    )


PT = namedtuple("PT", "a b")


class Sub(list):
    pass


class SubStr(str):
    pass


class SubInt(int):
    pass


@dataclass(slots=True)
class DS:
    a: Any
    b: Any = field(default_factory=list)


@dataclass(frozen=True)
class DF:
    a: Any
    b: Any = 1


@p
def b_generator_body(x, S):
    def g(n):
        for i in range(n):
            y = (x * i).sin()
            brk()
            yield y + 1

    out = x
    for v in g(3):
        out = out + v
    return out


@p
def b_generator_created(x, S):
    g = (x * i for i in range(3))
    brk()
    return sum(g)


@p
def b_generator_two(x, S):
    def g():
        a = x * 2
        b = yield a
        c = yield b
        return c

    it = g()
    v = next(it)
    brk()
    w = it.send(5)
    brk()
    try:
        it.send(7)
    except StopIteration as e:
        return v, w, e.value


@p
def b_nested(x, S):
    def h(y):
        z = y * 2
        brk()
        S.n += 1
        return z + 1

    def g(y):
        return h(y) + h(y * 3)

    return [g(x) for _ in range(2)]


@p
def b_map_cb(x, S):
    def h(y):
        z = y * 2
        brk()
        return z.cos()

    return list(map(h, [x, x + 1])), sorted([2, 1], key=lambda v: (brk(), v)[1])


@p
def b_prop(x, S):
    class A:
        @property
        def v(s):
            y = x * 2
            brk()
            return y

        def __add__(s, o):
            brk()
            return o * 3

        def __getitem__(s, i):
            brk()
            return x * i

        def __call__(s, i):
            brk()
            return x - i

        def __len__(s):
            brk()
            return 3

        def __bool__(s):
            brk()
            return False

        def __getattr__(s, n):
            brk()
            return n

        def __iter__(s):
            brk()
            yield x

        def __contains__(s, o):
            brk()
            return True

        def __enter__(s):
            brk()
            return s

        def __exit__(s, *a):
            brk()

        def __eq__(s, o):
            brk()
            return True

    a = A()
    with a as b:
        r = a.v, a + x, a[2], a(1), len(a), bool(a), a.zz, list(a), 1 in a, a == 2, not a
    return r


@p
def b_init(x, S):
    class A:
        def __init__(s):
            s.y = x * 2
            brk()
            s.z = s.y + 1

    return A().z


@p
def b_skip(x, S):
    def inner(y):
        S.n += 1
        return y.sin() * 2

    return skipped(inner, x) + disabled_nr(inner, x) + disabled(inner, x)


@p
def b_lock(x, S):
    import threading

    l = threading.Lock()
    with l:
        y = x * 2
        brk()
        y = y + 1
    return y


@p
def b_modes(x, S):
    with torch.enable_grad():
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x.T
            brk()
            z = y @ y
        w = z.float() * 2
        brk()
    return y, z, w, torch.is_grad_enabled()


@p
def b_inference(x, S):
    with torch.inference_mode():
        y = x * 2
        brk()
        z = y + 1
    return z * 1, z.is_inference(), torch.is_inference_mode_enabled()


@p
def w_inference(x, S):
    with torch.inference_mode():
        y = x * 2
        z = y + 1
    return z, z.is_inference(), torch.is_inference_mode_enabled()


@p
def b_default_dtype(x, S):
    torch.set_default_dtype(torch.float64)
    try:
        y = torch.ones(2)
        brk()
        z = torch.zeros(2)
    finally:
        torch.set_default_dtype(torch.float32)
    return y, z


@p
def b_contextvar(x, S):
    import contextvars

    t = CV.set(5)
    y = x * CV.get()
    brk()
    CV.reset(t)
    return y, CV.get(0)


import contextvars

CV = contextvars.ContextVar("cv", default=1)


@p
def b_match(x, S):
    match S.l:
        case [a, b]:
            y = x * a
            brk()
            return y + b


@p
def b_class_body(x, S):
    y = x * 2

    class A:
        z = 3
        brk()

        def f(s):
            return y * s.z

    return A().f()


@p
def b_lambda_default(x, S):
    f = lambda a, b=x * 2, *, c=[1]: (brk(), a + b, c.append(2), len(c))[1:]
    return f(1), f(2)


@p
def b_while_item(x, S):
    n = 0
    while x.sum().item() < 50 and n < 5:
        x = x * 2
        n += 1
    return x, n


@p
def b_data_branch(x, S):
    if x.sum() > 3:
        y = x * 2
    else:
        y = x - 1
    z = y.relu()
    return y + 1 if (z.max() > 1) else y - 1


@p
def b_tolist(x, S):
    v = x.tolist()
    return torch.tensor(v) * 2


@p
def b_nonzero(x, S):
    i = x.nonzero()
    return x[x > 0.5].sum(), i.shape[0]


@p
def b_print(x, S):
    print("", end="")
    y = x * 2
    print("", end="")
    return y


@p
def b_alias(x, S):
    a = [x]
    b = a
    y = x.view(-1)
    brk()
    b.append(1)
    y.add_(1)
    return a is b, a, x, y.data_ptr() == x.data_ptr(), y._base is not None


@p
def b_inplace(x, S):
    x.mul_(2)
    brk()
    x.add_(1)
    S.t.copy_(x.sum(0)[:3])
    brk()
    S.t += 1
    return x


@p
def b_view_chain(x, S):
    y = x[1:]
    z = y.t()
    brk()
    z.fill_(7)
    return x, y, z


@p
def b_side_then_raise(x, S):
    S.l.append(1)
    brk()
    S.d["k"] = x * 2
    S.n = 5
    raise RuntimeError("stop")


@p
def b_raise_in_callee(x, S):
    def g(y):
        S.n += 1
        brk()
        S.n += 1
        raise KeyError(S.n)

    try:
        g(x)
    except KeyError as e:
        return x * 2, e.args, lines(e.__traceback__)


@p
def b_star(x, S):
    def f(*a, **k):
        brk()
        return a, k

    return f(*S.l, x, **S.d)


@p
def b_kwnames(x, S):
    def f(a, b, c=0):
        brk()
        return a * b + c

    return f(x, b=f(1, 2, c=f(0, 0)), c=3)


@p
def b_chain_cmp(x, S):
    def v(k):
        brk()
        return k

    return (
        x,
        v(1) < v(2) < v(3) > v(0),
        v(1) and v(0) or v(5),
        [v(i) for i in range(3) if v(i)],
        {v(k): v(k + 1) for k in range(2)},
        f"{v(3)}{v(4):>3}",
    )


@p
def b_comp_nested(x, S):
    def v(k):
        brk()
        return k * x

    return [[v(i + j) for j in range(2)] for i in range(2)]


@p
def b_walrus(x, S):
    def v(k):
        brk()
        return k

    while (n := v(S.n)) < 2:
        S.n += 1
        x = x * 2
    return x, n


@p
def b_del(x, S):
    y = x * 2
    z = y
    del y
    brk()
    try:
        y
    except NameError as e:
        return z, str(e)


@p
def b_global(x, S):
    global GX
    GX = x * 2
    brk()
    r = GX + 1
    del GX
    return r, "GX" in globals()


@p
def b_closure_cells(x, S):
    n = 0
    y = x

    def f():
        nonlocal n, y
        n += 1
        y = y * 2
        brk()
        n += 1
        return lambda: (n, y)

    g = f()
    h = f()
    return g(), h(), n, y


@p
def b_recursion(x, S):
    def f(n, y):
        if n == 0:
            brk()
            return y
        z = f(n - 1, y * 2)
        brk()
        return z + n

    return f(3, x)


@p
def b_super(x, S):
    class A:
        def f(s, y):
            brk()
            return y * 2

    class B(A):
        def f(s, y):
            z = super().f(y)
            brk()
            return z + super().f(y)

    return B().f(x)


@p
def b_exc_group(x, S):
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as e:
        brk()
        S.l.append(len(e.exceptions))
    except* KeyError as e:
        S.l.append("k")
        brk()
    return x * 2


@p
def b_async(x, S):
    async def f():
        y = x * 2
        brk()
        return y + 1

    try:
        f().send(None)
    except StopIteration as e:
        return e.value


@p
def b_return_in_finally(x, S):
    for i in range(3):
        try:
            brk()
            if i == 1:
                return x * i
        finally:
            S.l.append(i)
            brk()


@p
def b_many_locals(x, S):
    a, b, c, d, e = [x * i for i in range(5)]
    t = (a, [b, {"c": c}], d)
    brk()
    return t[1][1]["c"] is c, a + b + c + d + e, t


@p
def b_raise_again(x, S):
    """An exception from before the break, raised and written after it: its traceback grows once."""
    try:
        deepr(x)
    except KeyError as e:
        y = x * 2
        brk()
        try:
            raise e
        except KeyError as again:
            S.l.append(lines(again.__traceback__))
        again = e
        again.add_note("note")
        brk()
        S.l.append((again.__notes__, lines(again.with_traceback(None).__traceback__)))
        return y + 1


@p
def b_raise_through_callees(x, S):
    def outer():
        try:
            deepr(x)
        except KeyError:
            y = x * 3
            brk()
            try:
                inner()
            finally:
                S.n += 1
            return y

    def inner():
        raise

    try:
        outer()
    except KeyError as e:
        return x + 1, lines(e.__traceback__)


@p
def b_record_function(x, S):
    with torch.profiler.record_function("part"):
        y = x * 2
        if y.sum() > 1e9:
            y = y + 1
        y = y + 3
    return y


@torch.profiler.record_function("decorated")
def decorated_with_a_record(x):
    y = x * 2
    return y + 3 if y.sum() < 1e9 else y


@p
def b_record_function_as_decorator(x, S):
    return decorated_with_a_record(x) * 2, decorated_with_a_record(x + 1)


KEPT_LIST = [1]
KEPT_APPEND = KEPT_LIST.append


@p
def bound_before_the_call(x, S):
    del KEPT_LIST[:]
    KEPT_APPEND(5)
    flashover.graph_break()
    return x * len(KEPT_LIST), list(KEPT_LIST)


@p
def tensors_for_keys(x, S):
    flashover.graph_break()
    y = x + 1
    d = {x: 1}
    flashover.graph_break()
    d[y] = 2
    flashover.graph_break()
    return d[x], d[y], len(d)


@p
def random_across_a_break(x, S):
    r = random.Random(5)
    flashover.graph_break()
    return x * r.random()


@p
def wrapped_across_a_break(x, S):
    def f(a):
        """doc"""
        return a + 1

    @functools.wraps(f)
    def g(a):
        return f(a)

    flashover.graph_break()
    return g(x), g.__doc__, g.__name__, g.__module__


@p
def super_after_a_break(x, S):
    class A:
        def f(self, y):
            return y + 1

    class B(A):
        def f(self, y):
            z = super().f(y)
            flashover.graph_break()
            return z + super().f(y)

    return B().f(x)
