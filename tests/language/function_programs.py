"""Functions and context managers inside a capture: small programs, each f(x, state), for test_language_programs.py."""
# ruff: noqa - one idea a line, in the old and odd ways that programs are written in, too

import contextlib
import functools
import inspect
import itertools
import operator
import warnings

import torch
from outcomes import State as NS
from programs import Programs
from torch import nn

PROGRAMS = p = Programs()


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
def gen_left_early(x, S):
    """The second is named like a function of a library: whether it is that one is asked while an exception pends."""

    def numbers():
        try:
            yield 1
            yield 2
        finally:
            S.l.append("closed")

    def get_backend():
        try:
            yield 3
        except KeyError as e:
            S.l.append(e.args)
            yield 4

    first = next(numbers())
    held = get_backend()
    return x * first * next(held), held.throw(KeyError("thrown")), any(n == 5 for n in (5, 6))


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
