"""Modules and classes that a call makes anew and that live across a graph break: what follows is compiled once."""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import comparing
import pytest
import torch

import flashover

Tensor = torch.Tensor
stop = flashover.graph_break
same = functools.partial(comparing.same, rtol=1e-6, atol=1e-6)


def a_class(x: Tensor, n: int) -> Any:
    class P:
        def __init__(self, v: Tensor) -> None:
            self.v = v

        def go(self) -> Tensor:
            return self.v.sin() * 2

    p = P(x + 1)
    stop()
    return p.go().cos()


def a_dataclass(x: Tensor, n: int) -> Any:
    @dataclasses.dataclass
    class D:
        a: Tensor
        n: int = 3

    d = D(x * 2)
    stop()
    return (d.a.sin() * d.n).cos()


def a_named_tuple(x: Tensor, n: int) -> Any:
    pair = collections.namedtuple("pair", "a b")
    t = pair(x + 1, x * 2)
    stop()
    return t.a.sin() + t.b.cos()


def a_module_class(x: Tensor, n: int) -> Any:
    class M(torch.nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            return (y.sin() * 2).cos()

    m = M()
    stop()
    return m(x) + 1


def a_function(x: Tensor, n: int) -> Any:
    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:
            ctx.save_for_backward(y)
            return y.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0].cos() * 2

    y = x * 2
    stop()
    return F.apply(y).cos()


def by_type(x: Tensor, n: int) -> Any:
    c = type("C", (), {"go": lambda self, y: y.sin() * 2})()
    stop()
    return c.go(x).cos() + 1


def derived(x: Tensor, n: int) -> Any:
    class Base:
        k: ClassVar[int] = 3

        def go(self, y: Tensor) -> Tensor:
            return y.sin() * self.k

    class Derived(Base):
        def go(self, y: Tensor) -> Tensor:
            return super().go(y).cos()

    d = Derived()
    stop()
    return d.go(x).exp() + 1


def a_context(x: Tensor, n: int) -> Any:
    class Context:
        def __enter__(self) -> float:
            return 2.0

        def __exit__(self, *error: object) -> bool:
            return True

    with Context() as c:
        y = x.sin() * c
        stop()
        y = y.cos() + 1
        raise ValueError
    return y.exp() * 2


def a_linear(x: Tensor, n: int) -> Any:
    m = torch.nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        m.weight.fill_(0.5)
    stop()
    y = m(x).sin() * 2
    y.sum().backward()
    return y, m.weight.grad


def layers(x: Tensor, n: int) -> Any:
    m = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.BatchNorm1d(4), torch.nn.Tanh())
    y = x.reshape(1, 4).repeat(3, 1) * torch.arange(3.0)[:, None]
    stop()
    y = m(y).cos() * 2
    return y, m[1].running_mean, m[1].num_batches_tracked


class Factor(torch.nn.Module):
    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k

    def forward(self, y: Tensor) -> Tensor:
        return (y.sin() * self.k).cos()


def a_module(x: Tensor, n: int) -> Any:
    m = Factor(3.0)
    y = x.sin() + 1
    stop()
    return m(y).cos() * 2


def new_instances(x: Tensor, n: int) -> Any:
    class P:
        def __init__(self, v: Tensor) -> None:
            self.v = v

    class Error(Exception):
        pass

    stop()
    made = [P(x.sin()), P(x.cos())]
    try:
        raise Error(made[0].v + 1)
    except Error as e:
        error = e
    stop()
    return made[0].v + made[1].v, error.args[0] * 2, isinstance(made[1], P), type(error) is Error


MADE_ANEW = [
    a_class,
    a_dataclass,
    a_named_tuple,
    a_module_class,
    a_function,
    by_type,
    derived,
    a_context,
    a_linear,
    layers,
    a_module,
    new_instances,
]


def outcome(f: Callable[..., Any], n: int, train: bool = False) -> Any:
    torch.manual_seed(n)
    x = torch.linspace(0, 1, 4).requires_grad_(train)
    out = f(x, n)
    if train:
        out.sum().backward()
        out = (out, x.grad)
    return out


@pytest.mark.parametrize("f", MADE_ANEW, ids=lambda f: f.__name__)
def test_what_follows_is_compiled_once(f: Callable[..., Any]) -> None:
    flashover.reset()
    fast = flashover.compile(f, backend="eager")
    made = [flashover.compile_stats()["graphs"]]
    for i in range(10):
        same(outcome(fast, i, f is a_function), outcome(f, i, f is a_function))
        made.append(flashover.compile_stats()["graphs"])
    assert made[0] < made[6] == made[-1]


# What differs from call to call is seen: `n` says how.


def closures(x: Tensor, n: int) -> Any:
    k = float(n % 3)

    class P:
        def go(self) -> Tensor:
            return x.sin() * k

        @property
        def at(self) -> float:
            return k + 1

        @staticmethod
        def plus(y: Tensor, d: float = k) -> Tensor:
            return y + d

        @classmethod
        def name(cls) -> Any:
            return cls.__name__, k

        def __add__(self, other: float) -> Tensor:
            return x * other + k

        def __eq__(self, other: object) -> bool:
            return k == 1

        __hash__ = None  # type: ignore[assignment]

        def __getattr__(self, name: str) -> Any:
            return name, k

        def __len__(self) -> int:
            return int(k)

    p = P()
    stop()
    return p.go(), p.at, p.plus(x), p.name(), p + 2.0, p == p, p.other, len(p), bool(p)


def attributes(x: Tensor, n: int) -> Any:
    class P:
        k = n % 3
        table: ClassVar[dict[str, int]] = {"a": n % 2}

    p = P()
    stop()
    return x * p.k + P.table["a"], hasattr(p, "b"), sorted(vars(P.table and p))


def methods(x: Tensor, n: int) -> Any:
    if n % 3 == 0:

        class P:
            def go(self, y: Tensor) -> Tensor:
                return y.sin()

    elif n % 3 == 1:

        class P:  # type: ignore[no-redef]
            def go(self, y: Tensor) -> Tensor:
                return y.cos()

    else:

        class P:  # type: ignore[no-redef]
            @staticmethod
            def go(y: Tensor) -> Tensor:
                return y.exp()

    p = P()
    stop()
    return p.go(x) * 2


class Sine:
    def go(self, y: Tensor) -> Tensor:
        return y.sin()


class Cosine:
    def go(self, y: Tensor) -> Tensor:
        return y.cos()


def bases(x: Tensor, n: int) -> Any:
    class P(Sine if n % 2 else Cosine):  # type: ignore[misc]
        pass

    class Q(P):
        def go(self, y: Tensor) -> Tensor:
            return super().go(y) * 2

    q = Q()
    stop()
    return q.go(x), isinstance(q, Sine), [c.__name__ for c in Q.__mro__]


def patched(x: Tensor, n: int) -> Any:
    class P:
        def go(self, y: Tensor) -> Tensor:
            return y.sin()

    p, k = P(), n % 3
    if k == 1:
        P.go = lambda self, y: y.cos() * k  # type: ignore[method-assign,assignment]
    elif k == 2:
        p.go = lambda y: y.exp() * k  # type: ignore[method-assign]
    stop()
    return p.go(x) + 1


def which_class(x: Tensor, n: int) -> Any:
    def make() -> Any:
        class P:
            pass

        return P

    a = make()
    b = a if n % 3 == 1 else make()
    c = a() if n % 3 == 2 else b()
    stop()
    same_kind = isinstance(c, a), isinstance(c, b), a is b, type(c) is a, type(c) is b
    return x * sum(2**i * v for i, v in enumerate(same_kind)), same_kind


def as_a_key(x: Tensor, n: int) -> Any:
    class P:
        pass

    class Q:
        pass

    known = {P: 1} if n % 2 else {Q: 2}
    p = P()
    stop()
    return x * known.get(type(p), 5), P in known, hash(P) == hash(type(p))


KNOWN: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def as_a_weak_key(x: Tensor, n: int) -> Any:
    class P:
        pass

    m = Factor(2.0)
    KNOWN[P] = KNOWN[m] = n % 3
    if n % 2:
        del KNOWN[P], KNOWN[m]
    p = P()
    stop()
    return x * KNOWN.get(type(p), 7), P in KNOWN, x + KNOWN.get(m, 5)


def written(x: Tensor, n: int) -> Any:
    class P:
        __slots__ = ("a", "b")
        count = 0

        def __init__(self) -> None:
            self.a = x * n

    p = P()
    stop()
    p.b = p.a + 1
    P.count += 1
    stop()
    p.a = p.b.sin()
    P.count += n
    return p.a, p.b, P.count


def modules(x: Tensor, n: int) -> Any:
    m = torch.nn.Sequential(*[Factor(float(n % 3)) for _ in range(1 + n % 2)])
    if n % 4 == 3:
        m.register_forward_hook(lambda *a: a[2] * n)
    m.train(n % 2 == 0)
    m.append(torch.nn.Dropout(0.0 if n % 4 else 1.0))
    stop()
    return m(x) + len(m), m.training, m[0].k


def a_shared_child(x: Tensor, n: int) -> Any:
    child = Factor(2.0)
    m = torch.nn.ModuleList([child, child if n % 2 else Factor(2.0)])
    stop()
    m[0].k = 4.0
    return m[1](x), m[0] is m[1], child is m[1], m[1].k


def parameters(x: Tensor, n: int) -> Any:
    m = torch.nn.Linear(4, 4 + n % 2)
    if n % 3 == 1:
        m.weight.requires_grad_(False)
    if n % 3 == 2:
        m = m.double()
    stop()
    y = m(x.to(m.weight.dtype)).sin().sum()
    y.backward()
    return y, m.weight.grad is None, m.bias.grad


def types_of_classes(x: Tensor, n: int) -> Any:
    class Meta(type):
        def __call__(cls, *args: Any) -> Any:
            return (super().__call__(*args), n % 3)

    class P(metaclass=Meta):
        pass

    stop()
    p, k = P()
    return x * k, type(p) is P


DIFFERENT = [
    closures,
    attributes,
    methods,
    bases,
    patched,
    which_class,
    as_a_key,
    as_a_weak_key,
    written,
    modules,
    a_shared_child,
    parameters,
    types_of_classes,
]


@pytest.mark.parametrize("f", DIFFERENT, ids=lambda f: f.__name__)
@pytest.mark.parametrize("order", ["000111222012345345", "210121012501234543"])
@pytest.mark.filterwarnings("ignore:.*recompile_limit")
def test_what_differs_is_seen(f: Callable[..., Any], order: str) -> None:
    flashover.reset()
    fast = flashover.compile(f, backend="eager")
    for i in order:
        same(outcome(fast, int(i)), outcome(f, int(i)))


def test_nothing_keeps_what_a_call_made() -> None:
    died: list[weakref.ref[Any]] = []

    def f(x: Tensor) -> Tensor:
        m = torch.nn.Linear(4, 4)
        died.append(weakref.ref(m))
        stop()
        y = m(x)
        stop()
        return m(y)

    fast = flashover.compile(f, backend="eager")
    for _ in range(4):
        fast(torch.ones(4))
        gc.collect()
        assert died[-1]() is None


def test_modules_as_arguments_of_calls() -> None:
    def f(m: torch.nn.Module, x: Tensor) -> Tensor:
        return m(x) * 2

    flashover.reset()
    fast = flashover.compile(f, backend="eager")
    before = flashover.compile_stats()["graphs"]
    for i in range(12):
        k = 2.0 if i < 8 else float(i)
        x = torch.ones(4)
        same(fast(Factor(k), x), f(Factor(k), x))
        if i == 7:
            assert flashover.compile_stats()["graphs"] - before <= 3
    stays = Factor(7.0)
    for _ in range(2):
        same(fast(stays, x), f(stays, x))


def test_other_code_with_other_parameters() -> None:
    """Guards of the code from before read arguments that the call did not have (a crash)."""

    def f(a: Tensor, b: Any, *c: Any, d: Any = None, **e: Any) -> Any:
        return a * b

    def g(a: Tensor) -> Any:
        return a.sin()

    x, code = torch.ones(2), f.__code__
    fast = flashover.compile(f, backend="eager")
    for _ in range(3):
        f.__code__ = code
        same(fast(x, 2, 3, e=Factor(2.0)), x * 2)
        f.__code__ = g.__code__
        same(fast(x), x.sin())


def test_a_collection_while_what_follows_is_compiled() -> None:
    """A crash: the collector found a place in the table of continuations that nothing had been put into."""

    class Net(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            stop()
            return x * 2

    def f(x: Tensor) -> Tensor:
        return Net()(x) + Net()(x)

    compiled = flashover.compile(f, backend="eager")
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(4):
            torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 4.0))
    finally:
        gc.set_threshold(*before)
