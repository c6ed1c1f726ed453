"""Plain Python for the differential test of the frame interpreter: statements, functions, exceptions, generators.

Each program is a function without arguments whose result, or exception, must be the same in the interpreter as in
CPython."""

import contextlib

from programs import Programs

PROGRAMS = program = Programs()


@program
def arithmetic():
    a, b = 7, 3
    return [
        a + b,
        a - b,
        a * b,
        a / b,
        a // b,
        a % b,
        a**b,
        a << b,
        a >> b,
        a & b,
        a | b,
        a ^ b,
        -a,
        +a,
        ~a,
        not a,
        a @ 0 if False else 1,
    ]


@program
def in_place():
    a = 5
    a += 2
    a -= 1
    a *= 3
    a //= 2
    a **= 2
    a %= 50
    a <<= 2
    a >>= 1
    a |= 8
    a &= 62
    a ^= 3
    l = [1]
    m = l
    l += [2, 3]
    return a, l, m, l is m


@program
def comparisons():
    x = 3
    return [1 < x < 5, 1 < x > 5, x == 3, x != 3, x is None, x is not None, x in [1, 3], x not in (3,), "a" in "cat"]


@program
def branches():
    out = []
    for i in range(10):
        if (i % 3 == 0 and i > 2) or i == 1:
            out.append(i)
        elif not i:
            out.append("zero")
        else:
            continue
        if i > 7:
            break
    else:
        out.append("else")
    n = 0
    while n < 5:
        n += 1
    else:
        out.append("while-else")
    return out, n


@program
def strings():
    name, v = "x", 3.14159
    return (
        f"{name!r:>5}|{v:.2f}|{v!s}|{name}|{1 + 2:03d}|{'nested ' + f'{name}'}",
        "%s-%d" % ("a", 3),
        f"{1} {2}",
    )


@program
def unpacking():
    a, b = 1, 2
    a, b = b, a
    first, *rest, last = range(6)
    (p, q), r = (1, 2), 3
    *init, end = "abc"
    d = {"a": 1, "b": 2}
    l = [*range(3), *"xy"]
    s = {*l, 5}
    t = (*l, 1)
    return a, b, first, rest, last, p, q, r, init, end, d, l, sorted(map(str, s)), t


@program
def unpack_errors():
    out = []
    for text in ("a, b = 1, 2, 3", "a, b, c = 1, 2", "a, b = 5", "a, *b, c = (1,)"):
        try:
            exec_free(text)
        except (ValueError, TypeError) as e:
            out.append(str(e))
    return out


def exec_free(text):
    if text.startswith("a, b = 1, 2, 3"):
        a, b = 1, 2, 3
        return a, b
    if text.startswith("a, b, c"):
        a, b, c = iter((1, 2))
        return a, b, c
    if text.startswith("a, b = 5"):
        a, b = 5
        return a, b
    a, *b, c = (1,)
    return a, b, c


@program
def comprehensions():
    m = [[i * j for j in range(4) if j % 2] for i in range(3)]
    return (
        m,
        {k: v for k, v in zip("abc", range(3))},
        {x % 3 for x in range(9)},
        list(x * x for x in range(4)),
        [y for x in m for y in x if y],
    )


@program
def closures():
    def counter():
        n = 0

        def inc(by=1, *, twice=False):
            nonlocal n
            n += by * (2 if twice else 1)
            return n

        return inc

    a, b = counter(), counter()
    fs = [lambda i=i: i for i in range(3)]
    late = [lambda: i for i in range(3)]
    return a(), a(5), b(twice=True), a(), [f() for f in fs], [f() for f in late]


@program
def call_forms():
    def f(a, b=2, *args, c, d=4, **kw):
        return a, b, args, c, d, sorted(kw.items())

    def g(a, /, b, *, c=1):
        return a, b, c

    kw = {"c": 9, "z": 1}
    return (
        f(1, c=3),
        f(1, 2, 3, 4, c=5, e=6),
        f(*[1, 2, 3], **kw),
        g(1, b=2),
        g(1, 2, c=3),
        max(*[1, 5, 2], key=lambda v: -v),
    )


@program
def call_errors():
    def f(a, b):
        return a

    out = []
    for thunk in (
        lambda: f(1),
        lambda: f(1, 2, 3),
        lambda: f(1, b=2, c=3),
        lambda: f(a=1, b=2),
        lambda: f(*5),
        lambda: f(1, a=1),
        lambda: f(**3),
        lambda: len(5),
        lambda: undefined_name,
        lambda: (1).foo,
    ):
        try:
            out.append(thunk())
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    return out


@program
def unbound():
    out = []

    def early():
        if out is None:
            x = 1
        return x

    def free():
        def inner():
            return y

        r = inner()
        y = 1
        return r, y

    for f in (early, free):
        try:
            f()
        except NameError as e:
            out.append((type(e).__name__, str(e)))
    return out


@program
def exceptions():
    out = []
    try:
        try:
            1 / 0
        except ZeroDivisionError as e:
            out.append(type(e).__name__)
            raise ValueError("second") from e
        finally:
            out.append("finally")
    except ValueError as e:
        out += [str(e), type(e.__cause__).__name__, type(e.__context__).__name__, e.__suppress_context__]
    else:
        out.append("no")
    try:
        [][3]
    except (KeyError, IndexError) as e:
        out.append(repr(e))
    try:
        try:
            raise KeyError("k")
        except KeyError:
            raise
    except LookupError as e:
        out.append(repr(e))

    def returns():
        for i in range(3):
            try:
                if i == 1:
                    return "try"
            finally:
                out.append(i)
        return "end"

    def swallowed():
        try:
            raise ValueError
        finally:
            return "swallowed"

    out += [returns(), swallowed()]
    return out


@program
def exception_info():
    import sys

    def deep(n):
        if n == 0:
            raise RuntimeError("deep")
        return deep(n - 1)

    out = []
    try:
        deep(3)
    except RuntimeError as e:
        tb = e.__traceback__
        while tb is not None:
            out.append((tb.tb_frame.f_code.co_name, tb.tb_lineno - tb.tb_frame.f_code.co_firstlineno))
            tb = tb.tb_next
        out.append(sys.exc_info()[0].__name__)
    out.append(sys.exc_info()[0])
    return out


@program
def reraise_nothing():
    try:
        raise
    except RuntimeError as e:
        return str(e)


@program
def raise_forms():
    out = []
    for thunk in (ValueError, ValueError("x"), KeyError, 3):
        try:
            raise thunk
        except BaseException as e:
            out.append(repr(e))
    try:
        raise ValueError("a") from None
    except ValueError as e:
        out.append((e.__cause__, e.__suppress_context__))
    try:
        raise ValueError("a") from 3
    except TypeError as e:
        out.append(str(e))
    return out


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append(("exit", kind.__name__ if kind else None, tb is not None))
        return self.swallow


@program
def with_blocks():
    log = []
    with Manager(log) as m, Manager(log, True):
        log.append(m is not None)
        raise ValueError
    try:
        with Manager(log):
            raise KeyError(1)
    except KeyError:
        log.append("caught")

    @contextlib.contextmanager
    def cm(v):
        log.append(("in", v))
        try:
            yield v + 1
        finally:
            log.append("out")

    with cm(3) as v:
        log.append(v)
    try:
        with cm(4):
            raise IndexError
    except IndexError:
        log.append("index")
    with contextlib.suppress(ZeroDivisionError):
        1 / 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(cm(7))
        stack.callback(log.append, "callback")
    with contextlib.nullcontext(5) as five:
        log.append(five)

    def early():
        for i in range(3):
            with cm(i):
                if i == 1:
                    return i

    log.append(early())
    try:
        with 3:
            pass
    except TypeError as e:
        log.append(str(e))
    return log


@program
def generators():
    def gen(n):
        try:
            for i in range(n):
                got = yield i
                if got:
                    yield got * 10
        finally:
            log.append("closed")
        return "done"

    def outer():
        r = yield from gen(3)
        yield r

    def failing():
        yield 1
        raise ValueError("in generator")

    log = []
    g = gen(5)
    a = [next(g), g.send(4), next(g), next(g)]
    g.close()
    b = list(outer())
    c = []
    try:
        for v in failing():
            c.append(v)
    except ValueError as e:
        c.append(str(e))
    h = gen(2)
    next(h)
    try:
        h.throw(KeyError("thrown"))
    except KeyError as e:
        c.append(repr(e))

    def catches():
        while True:
            try:
                yield 1
            except ValueError:
                yield 2

    k = catches()
    d = [next(k), k.throw(ValueError), next(k)]

    def stop():
        raise StopIteration
        yield

    try:
        list(stop())
    except RuntimeError as e:
        c.append(str(e))
    return a, b, c, d, log, sum(x for x in range(5)), any(x > 2 for x in range(5)), dict((x, x) for x in range(2))


@program
def nested_generator_delegation():
    def inner():
        x = yield 1
        y = yield x
        return x + y

    def mid():
        r = yield from inner()
        yield ("r", r)
        yield from [7, 8]

    g = mid()
    return [next(g), g.send(10), g.send(20), next(g), next(g), next(g, "end")]
