# ruff: noqa  programs as users write them
"""Programs that cannot be captured whole: each is run compiled and eager and everything that can be seen is compared."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import flashover
import torch

LOG: list[Any] = []


def straight(x, y):
    a = x.sin() + y
    print("a", tuple(a.shape))
    b = a * 2
    return b.cos() + a, a


def branch(x, y):
    a = x * 2
    if a.sum() > 0:
        b = a.cos()
    else:
        b = a.tan() + y
    return b + a


def branch_chain(x, y):
    if x.sum() > 0:
        x = x + 1
    elif y.sum() > 0:
        x = x - 1
    else:
        x = x * 3
    return x.relu()


def item_arithmetic(x, y):
    s = x.abs().sum().item()
    t = int(s) % 3
    if t == 0 and s > 1.0:
        return x + 1
    return y * 2 + t


def loop_print(x, y):
    for i in range(6):
        x = x.sin() + y
        print("step")
    return x


def loop_uses_index(x, y):
    out = []
    for i in range(4):
        x = x * i + y
        print(i)
        out.append(x.sum())
    return out


def loop_branch(x, y):
    n = 0
    for i in range(6):
        x = x + y
        if x.mean() > i - 3:
            x = x.tanh()
            n += 1
        else:
            x = x * 0.5
    return x, n


def while_item(x, y):
    n = 0
    while x.abs().sum().item() > 0.5 and n < 20:
        x = x * 0.5
        n += 1
    return x, n


def loop_break_continue(x, y):
    total = torch.zeros(())
    for i, row in enumerate(x):
        if row.sum() < 0:
            continue
        if i == 3:
            print("leave")
            break
        total = total + row.max()
    else:
        total = total - 1
    return total


def no_grad_block(x, y):
    with torch.no_grad():
        a = x * 2
        print(torch.is_grad_enabled())
        b = a + y
    print(torch.is_grad_enabled())
    return b.sin()


def enable_grad_block(x, y):
    with torch.enable_grad():
        print(torch.is_grad_enabled())
        a = x * 2
    return a


def autocast_block(x, y):
    with torch.autocast("cpu", torch.bfloat16):
        a = x @ y
        print(a.dtype)
        b = a @ y
    c = b.float() @ y
    return a, b, c


class Recorder:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, *error):
        self.log.append(("exit", error[0] and error[0].__name__))
        return False


class Swallow(Recorder):
    def __exit__(self, *error):
        self.log.append("swallow")
        return True


def own_context(x, y):
    log = []
    with Recorder(log) as r:
        x = x + 1
        print("inside", len(r.log))
        x = x * 2
    return x, log


def swallowed(x, y):
    log = []
    with Swallow(log):
        x = x + 1
        flashover.graph_break()
        raise ValueError("gone")
    return x.sin(), log


def nested_with(x, y):
    log = []
    with Recorder(log), torch.no_grad(), Recorder(log):
        x = x.sin()
        flashover.graph_break()
        x = x.cos()
    return x, log, torch.is_grad_enabled()


class Passes(Recorder):
    """What it gives is no number, so that its truth is asked by whoever goes on."""

    def __exit__(self, *error):
        print("passes", error[0] and error[0].__name__)
        return self.log


def error_passes_an_exit_that_breaks(x, y):
    x = x + 1
    with Passes([]) as p:
        p.log.clear()
        x = x.sin()
        {}["missing"]
    return x


@contextlib.contextmanager
def doubled(log):
    log.append("in")
    try:
        yield 2.0
    finally:
        log.append("out")


def generator_context(x, y):
    log = []
    with doubled(log) as d:
        x = x * d
        print("in generator context", log)
        x = x + y
    return x, log


def try_finally(x, y):
    log = []
    try:
        x = x + 1
        print("body")
        x = x * 2
    finally:
        log.append("finally")
    return x, log


def try_except_after(x, y):
    try:
        a = x + 1
        flashover.graph_break()
        raise KeyError("k")
    except KeyError as e:
        b = a * 2
        print("caught", e)
        b = b + y
    return b.cos()


def break_in_handler(x, y):
    try:
        {}["missing"]
    except KeyError as e:
        x = x + 1
        print("handling", e)
        x = x * y
    return x


def raise_from_handler(x, y):
    try:
        try:
            x = x + 1
            raise KeyError("inner")
        except KeyError as e:
            flashover.graph_break()
            raise ValueError("outer") from e
    except ValueError as e:
        return x * 2, repr(e), repr(e.__cause__)


def raises(x, y):
    x = x + 1
    print("before")
    raise RuntimeError(f"bad {tuple(x.shape)}")


def error_after(x, y):
    x = x + 1
    flashover.graph_break()
    return x @ torch.ones(7, 7)


def inner_print(x):
    x = x.sin()
    print("inner")
    return x.cos()


def nested_call(x, y):
    a = inner_print(x) + y
    b = inner_print(a) * 2
    return b + a


def nested_twice(x, y):
    def middle(t, *args, scale=1.0, **kw):
        t = t * scale
        t = inner_print(t)
        return t + len(args) + len(kw)

    return middle(x, 1, 2, scale=3.0, z=1) + y


def nested_in_loop(x, y):
    for _ in range(3):
        x = inner_print(x) + y
    return x


def nested_in_try(x, y):
    def fail(t):
        t = t + 1
        flashover.graph_break()
        raise ValueError(str(tuple(t.shape)))

    try:
        return fail(x)
    except ValueError as e:
        return x * 2, str(e)


def nested_in_expression(x, y):
    return [x.sum(), inner_print(x).sum(), {"k": (y, inner_print(y))}]


def recursive(x, y):
    def go(t, n):
        if n == 0:
            return t
        t = t + n
        print("depth", n)
        return go(t, n - 1) * 2

    return go(x, 3)


def closure_cells(x, y):
    count = 0

    def bump(t):
        nonlocal count
        count += 1
        print("count", count)
        return t * count

    x = bump(x)
    x = bump(x)
    return x, count


def cell_tensor(x, y):
    acc = x

    def add(t):
        nonlocal acc
        acc = acc + t

    add(y)
    flashover.graph_break()
    add(y)
    return acc


def generator_break(x, y):
    def rows():
        for i in range(3):
            print("row", i)
            yield x * i

    total = y
    for r in rows():
        total = total + r
    return total


def generator_outside(x, y):
    def rows():
        t = x
        for i in range(3):
            t = t + i
            yield t

    total = y
    for r in rows():
        print("got")
        total = total + r
    return total


def comprehension(x, y):
    return [t.sin() for t in (x, y, x + y) if t.sum() > -1000]


def comprehension_print(x, y):
    def show(i):
        print("show", i)
        return i

    return sum([x * show(i) for i in range(3)])


def sort_key(x, y):
    rows = sorted([x[0], x[1], x[2]], key=lambda r: r.sum().item())
    return torch.stack(rows) + 1


def iterators(x, y):
    out = []
    for i, (a, b) in enumerate(zip([x, y, x + y], reversed([1, 2, 3]))):
        out.append(a * b)
        print("it", i)
    return out


def dict_iteration(x, y):
    d = {"x": x, "y": y, "z": x + y}
    total = 0
    for k, v in d.items():
        total = total + v
        print(k)
    return total, list(d)


def map_filter(x, y):
    total = y
    for t in map(lambda v: v * 2, filter(lambda v: v is not None, [x, None, y])):
        total = total + t
        print("mapped")
    return total


def range_iterators(x, y):
    it = iter(range(10, 0, -3))
    x = x + next(it)
    print("one")
    x = x + next(it)
    flashover.graph_break()
    return x, list(it)


def mutated_list(x, y):
    LOG.append(x.sum())
    print("logged", len(LOG))
    LOG.append((x * 2).sum())
    return LOG


class Holder:
    def __init__(self):
        self.t = None
        self.items = []
        self.n = 0

    def put(self, t):
        self.t = t + 1
        self.n += 1
        flashover.graph_break()
        self.items.append(self.t * 2)
        return self


def attributes(x, y):
    h = Holder()
    h.put(x)
    h.put(h.t)
    return h.t, h.items, h.n


def in_place(x, y):
    x = x.clone()
    v = x[0]
    v.add_(1)
    print("mid")
    v.mul_(2)
    x[1] = y[0]
    flashover.graph_break()
    x.add_(1)
    return x, v


def writes_input(x, y):
    x.add_(1)
    print("written")
    x.mul_(2)
    return y + x


def views_across(x, y):
    a = x + 1
    b = a.t()
    flashover.graph_break()
    a.add_(1)
    return b, a


def stack_contents(x, y):
    return x.sin() + int(y.sum().item() * 0) + x.cos(), (x, y.max().item() > -100, [1, 2])


def keyword_call(x, y):
    def f(a, *, b, c=3):
        return a * b + c

    return f(x, b=float(y.sum() > 0), c=int(x.sum() > 0))


def format_string(x, y):
    s = f"{tuple(x.shape)} {x.sum().item() > -1000} {y.dtype}"
    return s, x + 1


def contains_item(x, y):
    return x + (1 if 3.0 in [y.sum().item(), 3.0] else 2)


def unpacked(x, y):
    a, b, *rest = x.tolist()
    return y + len(rest) + len(a)


def to_numpy(x, y):
    a = (x + 1).numpy()
    return torch.from_numpy(a * 2) + y


def boolean_ops(x, y):
    return (x.sum() > 0 and y + 1) or y - 1, x.sum() > 0 or y


def assertion(x, y):
    assert x.shape[0] == 4, "shape"
    assert (x * 0).sum() == 0, "zero"
    return x + 1


def nonzero(x, y):
    i = torch.nonzero(x > 0)
    return i.shape[0] >= 0, x[x > 0].sum() + y


def default_arguments(x, y, scale=2.0, *rest, flag=True, **options):
    x = x * scale
    print("options", sorted(options), rest, flag)
    return x + y if flag else x


def deleted_local(x, y):
    a = x + 1
    b = a * 2
    del a
    flashover.graph_break()
    try:
        a
    except UnboundLocalError:
        b = b + 1
    return b


def shows_locals(x, y):
    a = x + 1
    flashover.graph_break()
    return sorted(locals()), a


class Child(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)
        self.n = n

    def forward(self, x):
        x = self.l(x)
        print("child", self.n)
        return x.relu()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(Child(0), Child(1), torch.nn.Linear(4, 4), Child(2))
        self.more = torch.nn.ModuleList([Child(3), Child(4)])

    def forward(self, x):
        x = self.layers(x)
        for m in self.more:
            x = m(x) + 1
        return x


NET = Net().eval()


def modules(x, y):
    return NET(x) + y


def super_call(x, y):
    class A:
        def go(self, t):
            flashover.graph_break()
            return t + 1

    class B(A):
        def go(self, t):
            t = t * 2
            print("b")
            return super().go(t) * 3

    return B().go(x)


def lambda_default(x, y):
    fs = [lambda t, k=k: t * k for k in range(3)]
    print("made")
    return [f(x) for f in fs]


def bound_methods(x, y):
    out = []
    add = out.append
    add(x + 1)
    flashover.graph_break()
    add(y + 1)
    f = x.mul
    flashover.graph_break()
    return out, f(2)


def exception_state(x, y):
    import sys

    try:
        raise KeyError("a")
    except KeyError:
        flashover.graph_break()
        first = sys.exc_info()[0]
    flashover.graph_break()
    return x + 1, first, sys.exc_info()[0]


def finally_return(x, y):
    def f(t):
        try:
            t = t + 1
            print("in try")
            return t * 2
        finally:
            print("in finally")

    return f(x) + 1


def disabled_call(x, y):
    return HIDDEN(x + 1) * 2


@flashover.disable
def HIDDEN(t):
    return t.numpy().sum() + t


def chained(x, y):
    return itertools.chain([x], [y]).__next__() + 1 if (x * 0).sum() == 0 else y


class Loud:
    @property
    def value(self):
        print("property")
        return 3

    def __init__(self, t=None):
        print("init")
        self.t = t

    def __add__(self, other):
        print("add")
        return self.t + other

    def __getattr__(self, name):
        print("getattr", name)
        return 2


def python_behind_c(x, y):
    x = x + 1
    a = Loud(x)
    return a.value * x, a + y, a.missing * y


def file_block(x, y):
    with open("/dev/null", "w") as f:
        x = x + 1
        f.write("a")
        x = x * 2
    return x, f.closed


def numpy_values(x, y):
    import numpy as np

    a = np.abs((x + 1).numpy())
    return x * float(a.sum()) + y, a.shape, bool((a > 0).any())


def list_across(x, y):
    d = {}
    d.setdefault("a", []).append(x + 1)
    print("z")
    d["a"].append(y)
    d["b"] = d["a"]
    flashover.graph_break()
    d["b"].append(3)
    return d, len(d["a"])


def library_function(x, y):
    import copy

    return copy.deepcopy(x + 1) * 2


def started_generator(x, y):
    def rows():
        log.append("start")
        try:
            for i in range(5):
                yield x + i
        finally:
            log.append("end")

    log = []
    g = rows()
    a = next(g)
    print("between")
    b = next(g)
    g.close()
    return a + b, log


def unfinished_generator(x, y):
    log = []

    def rows():
        try:
            yield x + 1
            yield x + 2
        finally:
            log.append("closed")

    for r in rows():
        y = y + r
        flashover.graph_break()
        break
    return y, log


def groups_that_are_left(x, y):
    log = []

    def clauses():
        try:
            raise ExceptionGroup("group", [ValueError(1), TypeError(2), KeyError(3), OSError(4)])
        except* ValueError as e:
            flashover.graph_break()
            log.append(len(e.exceptions))
        except* TypeError as e:
            raise RuntimeError("in a clause") from e
        except* OSError:
            flashover.graph_break()
            raise

    def whole(again):
        try:
            raise ExceptionGroup("group", [ValueError(1), TypeError(2)])
        except* ValueError:
            y.sin()
        except* TypeError:
            if again:
                raise ZeroDivisionError from None

    for f in (clauses, lambda: whole(False), lambda: whole(True)):
        try:
            f()
        except BaseExceptionGroup as e:
            log.append((str(e), [(type(i).__name__, str(i), repr(i.__cause__)) for i in e.exceptions]))
            x = x.sin()
    return x + y, log


PROGRAMS = [
    v
    for v in list(globals().values())
    if callable(v) and getattr(v, "__code__", None) is not None and v.__code__.co_varnames[:2] == ("x", "y")
]
