"""Generators, exceptions, match statements and scoping inside a capture: small programs, each f(x, state), for test_language_programs.py."""
# ruff: noqa - one idea a line, in the old and odd ways that programs are written in, too

import enum
import itertools
import string
from dataclasses import dataclass
from typing import (
    Any,
)

import torch
from outcomes import State as NS
from outcomes import lines
from programs import Programs

PROGRAMS = p = Programs()
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
