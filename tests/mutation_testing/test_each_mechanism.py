"""One small program for each thing that a capture keeps track of: kinds of guards, effects, what results are made of,
what a frame is resumed with. Each fails at once when its mechanism does (tests/mutation_testing/mutation_testing.py runs this file first)."""

# ruff: noqa: E501 (programs, one a line)
from __future__ import annotations

import collections
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import flashover

HEADER = """
import abc, collections, contextlib, copy, functools, inspect, itertools, operator, os, sys, types
import torch
import flashover

def stop():
    flashover.graph_break()

class Plain:
    pass

class Slotted:
    __slots__ = ("a", "b")

class Many(list):
    pass
"""


MADE = "def made(mode):\n    new = Plain()\n    new.mode = mode\n    return new\n"


@dataclass
class Case:
    name: str
    program: str  # defines f, called with one tensor unless `args` says otherwise; STATE is compared after each call
    changes: tuple[str, ...] = ("",)  # run between calls
    args: str = "(torch.arange(4.0),)"
    kernels: bool = False  # what is done to memory; operators one by one would see for themselves what shares it


def effect(name: str, setup: str, body: str, *changes: str, kernels: bool = False) -> Case:
    lines = "\n".join("    " + line for line in body.splitlines())
    return Case(f"effect {name}", f"{setup}\ndef f(x):\n{lines}\n", changes or ("", ""), kernels=kernels)


CASES = [
    # What the program writes is written once a call, and what the capture wrote is taken back.
    effect("item of a dict", "STATE = {'n': 1, 'm': 2}", "STATE['n'] = STATE['n'] + 1\nreturn x * STATE['n']"),
    effect("new item of a dict", "STATE = {}", "STATE[len(STATE)] = x + 1\nreturn x * 2"),
    effect("item taken out", "STATE = {'a': 1, 'b': 2, 'c': 3}", "STATE.pop('b', None)\nreturn x * 2"),
    effect("item deleted", "STATE = {'a': 1, 'b': 2}", "if 'a' in STATE:\n    del STATE['a']\nreturn x * 2"),
    effect("item that moves to the end", "STATE = {'a': 1, 'b': 2}", "v = STATE.pop('a')\nSTATE['a'] = v\nreturn x * v"),
    effect("order of a dict that is seen", "STATE = {'a': 1, 'b': 2, 'c': 3}", "k = next(iter(STATE))\nv = STATE.pop(k)\nSTATE[k] = v\nreturn x * v"),
    effect("whole dict", "STATE = {'a': 1, 'b': 2}", "old = dict(STATE)\nSTATE.clear()\nSTATE.update(z=len(old), **old)\nreturn x * 2"),
    effect("attribute of an object", "STATE = [Plain()]\nSTATE[0].n = 1", "STATE[0].n += 1\nreturn x * STATE[0].n"),
    effect("new attribute", "STATE = [Plain()]", "STATE[0].n = x.sum()\nreturn x * 2", "", "del STATE[0].n"),
    effect("attribute of a class", "class K:\n    n = 1\nSTATE = [K]", "K.n = K.n + 1\nreturn x * K.n"),
    effect("attribute of a class that goes", "class K:\n    n = 1\nSTATE = [K]", "if 'n' in K.__dict__:\n    del K.n\nreturn x * 2"),
    effect("slot", "STATE = [Slotted()]\nSTATE[0].a = 1", "STATE[0].a = STATE[0].a + 1\nreturn x * STATE[0].a"),
    effect("slot that goes", "STATE = [Slotted()]\nSTATE[0].a = 1\nSTATE[0].b = 2", "del STATE[0].b\nreturn x * STATE[0].a", "STATE[0].b = 3", "STATE[0].b = 3"),
    effect("item of a list", "STATE = [1, 2, 3]", "STATE[1] = STATE[1] + 1\nreturn x * STATE[1]"),
    effect("order of a list", "STATE = [3, 1, 2]", "STATE.reverse()\nreturn x * STATE[0]"),
    effect("appended", "STATE = []", "STATE.append(x + 1)\nreturn x * 2"),
    effect("set", "STATE = {1}", "STATE.add(len(STATE) + 1)\nreturn x * 2"),
    effect("deque", "STATE = collections.deque([1, 2], 3)", "STATE.appendleft(STATE[0] + 1)\nreturn x * STATE[0]"),
    effect("cell", "def make():\n    n = 1\n    def f(x):\n        nonlocal n\n        n += 1\n        return x * n\n    return f, lambda: n\nf0, peek = make()", "y = f0(x)\nreturn y, peek()"),
    effect("global", "N = 1\nSTATE = {}", "global N\nN += 1\nreturn x * N, N"),
    effect("order of an OrderedDict", "STATE = collections.OrderedDict(a=1, b=2, c=3)", "STATE.move_to_end('a')\nreturn x * next(iter(STATE.values()))"),
    effect("grad mode", "STATE = {}", "torch.set_grad_enabled(False)\ny = x * 2\nSTATE['on'] = torch.is_grad_enabled()\nreturn y", "STATE['g'] = torch.is_grad_enabled(); torch.set_grad_enabled(True)", "STATE['g'] = torch.is_grad_enabled(); torch.set_grad_enabled(True)"),
    effect("gradient", "W = torch.ones(4, requires_grad=True)\nSTATE = {}", "W.grad = x + 1\nSTATE['g'] = W.grad\nreturn x * 2"),
    effect("buffer", "STATE = [torch.zeros(4)]", "STATE[0].add_(x)\nreturn STATE[0] * 2", kernels=True),
    effect("through a view", "STATE = [torch.zeros(4)]", "v = STATE[0][1:3]\nv.add_(1)\nw = STATE[0].view(2, 2)\nv.mul_(2)\nreturn w + 1", kernels=True),
    effect("a view that is read again", "STATE = [torch.zeros(4)]", "v = STATE[0][1:3]\na = v + 1\nSTATE[0].add_(x)\nreturn a, v * 2", kernels=True),
    effect("version of a written tensor", "STATE = [torch.zeros(4)]\nSEEN = []", "STATE[0].add_(x)\nreturn STATE[0] * 2", "STATE.append(STATE[0]._version)", "STATE.append(STATE[0]._version)", kernels=True),
    # Results.
    Case("one list twice", "def f(x):\n    l = [x + 1]\n    return l, l, {'l': l}\nCHECK = lambda r: r[0] is r[1] is r[2]['l']"),
    Case("order of a dict", "def f(x):\n    return {'b': x, 'a': x + 1, 3: x - 1}"),
    Case("closure", "def f(x):\n    y, k = x + 1, 3\n    def g():\n        return y * k\n    return g\nCHECK = lambda g: (g(), [c.cell_contents for c in g.__closure__])"),
    Case("attributes", "def f(x):\n    p = Plain()\n    p.y, p.n = x + 1, [2]\n    return p\nCHECK = lambda p: vars(p)"),
    Case("slots", "def f(x):\n    p = Slotted()\n    p.a, p.b = x + 1, 7\n    return p\nCHECK = lambda p: (p.a, p.b)"),
    Case("items of a subclass", "def f(x):\n    m = Many([x + 1, 2])\n    m.name = 'm'\n    return m\nCHECK = lambda m: (list(m), m.name)"),
    Case("items of a deque", "def f(x):\n    return collections.deque([x + 1, 2], 5)\nCHECK = lambda q: (list(q), q.maxlen)"),
    Case("defaults", "def f(x):\n    y = x + 1\n    def g(a, b=y, *, c=4):\n        return a + b + c\n    return g\nCHECK = lambda g: (g(1), g.__defaults__, g.__kwdefaults__, g.__name__)"),
    Case("bound method", "class B(Plain):\n    def get(self):\n        return self.v\ndef f(x):\n    b = B()\n    b.v = x + 1\n    return b.get\nCHECK = lambda m: (m(), type(m.__self__).__name__)"),
    Case("exception", "def f(x):\n    try:\n        try:\n            raise KeyError('k')\n        except KeyError as e:\n            raise ValueError('v') from e\n    except ValueError as e:\n        return e, x + 1\nCHECK = lambda r: (repr(r[0]), repr(r[0].__cause__), repr(r[0].__context__), [t for t in lines(r[0])], r[1])\n"
         "def lines(e):\n    t = e.__traceback__\n    while t:\n        yield t.tb_lineno\n        t = t.tb_next"),
    Case("context of an exception", "def f(x):\n    try:\n        try:\n            raise KeyError('k')\n        except KeyError:\n            raise ValueError('v')\n    except ValueError as e:\n        return e, x + 1\nCHECK = lambda r: (repr(r[0].__cause__), repr(r[0].__context__))"),
    Case("iterator over a list", "def f(x):\n    it = iter([1, 2, 3, 4])\n    next(it)\n    return it, x + 1\nCHECK = lambda r: list(r[0])"),
    Case("iterator over a dict", "def f(x):\n    it = iter({'a': 1, 'b': 2, 'c': 3}.items())\n    next(it)\n    return it, x + 1\nCHECK = lambda r: list(r[0])"),
    Case("generator at a yield", "def g(y):\n    a = y + 1\n    yield a\n    yield a * 2\n    yield 3\ndef f(x):\n    it = g(x)\n    next(it)\n    return it, x + 1\nCHECK = lambda r: list(r[0])"),
    Case("outputs that are views of an input", "def f(x):\n    return x[1:], x.view(2, 2)\nP = (torch.arange(4.0),)\nCHECK = lambda r: (r[0].add_(1), r[1], P[0])", ("P = (torch.arange(4.0),)",), "P", kernels=True),
    Case("outputs that are views of each other", "def f(x):\n    y = x + 1\n    return y, y[1:], y.view(2, 2)\nCHECK = lambda r: (r[0].add_(1), r[1], r[2])", kernels=True),
    # Graph breaks.
    Case("two locals", "def f(x):\n    a, b, n = x + 1, x * 2, 3\n    stop()\n    return a - b * n, n"),
    Case("values on the stack", "def g(v):\n    stop()\n    return v\ndef f(x):\n    return (x + 1) - g(x * 2) * 3, [1, x, g(5), 7]"),
    Case("result of a callee", "def g(v):\n    y = v + 1\n    stop()\n    return y * 2\ndef f(x):\n    return g(x) + g(x * 3)"),
    Case("a handled exception", "def f(x):\n    try:\n        raise KeyError('k')\n    except KeyError:\n        y = x + 1\n        stop()\n        z = y * 2, repr(sys.exc_info()[1])\n        try:\n            raise\n        except KeyError as e:\n            return z, repr(e)"),
    Case("an exception after it", "def f(x):\n    y = x + 1\n    try:\n        stop()\n        y = y * 2\n        raise ValueError('v')\n    except ValueError as e:\n        return y + 1, repr(e)\n    finally:\n        y = None"),
    Case("an exception of a captured rest", "def g(y):\n    if y.shape[0] == 4:\n        raise ValueError('v')\ndef f(x):\n    y = x + 1\n    try:\n        stop()\n        y = y * 2\n        g(y)\n    except ValueError as e:\n        return y + 1, repr(e)"),
    Case("an exception of a captured operator", "def f(x, i):\n    y = x + 1\n    try:\n        stop()\n        y = y * 2\n        y = torch.index_select(y, 0, i)\n    except (IndexError, RuntimeError) as e:\n        return y - 1, type(e).__name__\n    return y + 3\nP = (torch.arange(4.0), torch.tensor([1, 2]))", ("P = (torch.arange(4.0), torch.tensor([1, 9]))", "P = (torch.arange(4.0), torch.tensor([0, 2]))"), "P"),
    Case("an exception that leaves a captured rest", "def g(y):\n    stop()\n    z = y * 2\n    raise ValueError(f'v{z.dim()}')\ndef f(x):\n    try:\n        g(x + 1)\n    except ValueError as e:\n        return x * 3, repr(e)"),
    Case("an exception after a write", "def f(x, i):\n    y = x * 3\n    try:\n        stop()\n        x.add_(1)\n        y = torch.index_select(y, 0, i) * 2\n    except IndexError as e:\n        return y - 1, x + 0, type(e).__name__\n    return y + 3\nP = (torch.arange(4.0), torch.tensor([1, 2]))", ("P = (torch.arange(4.0), torch.tensor([1, 9]))", "P = (torch.arange(4.0), torch.tensor([0, 2]))"), "P"),
    Case("an exception after a statistic was counted", "M = torch.nn.BatchNorm1d(4)\ndef f(x):\n    y = M(x)\n    return y.shape\nP = (torch.ones(3, 4),)\nSTATE = []\nCHECK = lambda r: (r, int(M.num_batches_tracked))", ("P = (torch.ones(3, 4).double(),)", "STATE.append(int(M.num_batches_tracked)); P = (torch.ones(3, 4),)", "P = (torch.ones(1, 4),)", "P = (torch.ones(2, 4),)"), "P"),
    Case("two of the same shape", "def f(x):\n    a = x + 1\n    stop()\n    a = a * 2\n    stop()\n    a = a - 3\n    stop()\n    return a"),
    Case("a loop over a dict", "def f(x):\n    out = []\n    for k, v in {'a': 1, 'b': 2, 'c': 3}.items():\n        x = x + v\n        stop()\n        out.append(k)\n    return x, out"),
    Case("a loop over a zip", "def f(x):\n    out = []\n    for i, (a, b) in enumerate(zip([1, 2, 3], 'abc')):\n        x = x + a\n        stop()\n        out.append((i, b))\n    return x, out"),
    Case("a record_function", "def f(x):\n    y = x + 1\n    with torch.profiler.record_function('r') as r:\n        y = y * 3\n        stop()\n        z = y * 2\n    return z, r.record is None"),
    Case("a cell", "def f(x):\n    n = 1\n    def g():\n        nonlocal n\n        n += 1\n        return n\n    g()\n    y = x + n\n    stop()\n    g()\n    return y * n, n"),
    Case("a with", "class W:\n    def __init__(self, log):\n        self.log = log\n    def __enter__(self):\n        self.log.append('in')\n        return self\n    def __exit__(self, kind, *rest):\n        self.log.append(kind)\n        return True\ndef f(x):\n    log = []\n    with W(log), torch.no_grad():\n        y = x + 1\n        stop()\n        y = y * 2\n        raise KeyError\n    return y, log, torch.is_grad_enabled()"),
    # Guards: what was seen and then changes.
    Case("value", "K = 2\ndef f(x):\n    return x * K", ("K = 3", "K = True", "K = 2.0", "K = 2")),
    Case("identity", "def g(x):\n    return x + 1\ndef h(x):\n    return x - 1\nT = {'a': g}\ndef f(x):\n    return T['a'](x)", ("T['a'] = h", "T['a'] = g")),
    Case("class of an argument", "class A(Plain):\n    def k(self):\n        return 1\nclass B(Plain):\n    def k(self):\n        return 2\ndef f(x, o):\n    return x * o.k()\nO = A()", ("O = B()", "O = A()"), "(torch.arange(4.0), O)"),
    Case("class that is assigned", "class A(Plain):\n    def k(self):\n        return 1\nclass B(Plain):\n    def k(self):\n        return 2\nO = A()\ndef f(x):\n    return x * O.k()", ("O.__class__ = B", "O.__class__ = A")),
    Case("dict that is assigned", "O = Plain()\nO.k = 1\ndef f(x):\n    return x * O.k", ("O.__dict__ = {'k': 2}", "O.__dict__ = {'k': 3}")),
    Case("length", "L = [1, 2]\ndef f(x):\n    return x * len(L)", ("L.append(3)", "L.pop()", "del L[:]")),
    Case("item of a list", "L = [1, 2]\ndef f(x):\n    return x * L[1] + sum(L)", ("L[1] = 5", "L[0] = 7", "L.reverse()")),
    Case("item of a tuple of an argument", "def f(x, t):\n    return x * t[1][0]\nT = (1, (2, 3))", ("T = (1, (9, 3))", "T = (1, (2, 3))"), "(torch.arange(4.0), T)"),
    Case("item of a set", "S = {1, 2}\ndef f(x):\n    return x * sum(S)", ("S.add(5)", "S.discard(1)", "S.add(7); S.discard(2)")),
    Case("absent key", "D = {'a': 1}\ndef f(x):\n    return x * D.get('b', 2)", ("D['b'] = 3", "del D['b']")),
    Case("default_factory", "D = collections.defaultdict(float)\nSTATE = D\ndef f(x):\n    return x + D['q']", ("D.clear(); D.default_factory = lambda: 3", "D.clear(); D.default_factory = None", "D.default_factory = int")),
    Case("default_factory by a method", "D = collections.defaultdict(lambda: K)\nK = 2\nSTATE = D\ndef f(x):\n    return x + D.__getitem__('q') + len(D.copy().default_factory.__name__)", ("D.clear()", "D.clear(); K = 3", "D.clear(); D.default_factory = float", "D.default_factory = int")),
    Case("default_factory of a copy", "D = collections.defaultdict(float)\ndef f(x):\n    return x + D.copy()['q']", ("D.default_factory = lambda: 3", "D.default_factory = None")),
    Case("what an autograd Function runs", "class G(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x * 2\n    @staticmethod\n    def backward(ctx, g):\n        return g * 2\ndef f(x):\n    x = x.detach().requires_grad_()\n    return torch.autograd.grad(G.apply(x).sum(), x)[0] + G.apply(x).detach()", ("G.forward = staticmethod(lambda ctx, x: x * 3)", "G.backward = staticmethod(lambda ctx, g: g * 5)")),
    Case("default_factory that is changed", "D = collections.defaultdict(float)\nSTATE = D\ndef f(x):\n    D.default_factory = int if D.default_factory is float else float\n    return x + D[x.dim()]", ("", "D.clear()")),
    Case("key of a class of its own", "class Key:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n    def __hash__(self):\n        return self.a\n    def __eq__(self, other):\n        return self.b == other.b\nK = Key(1, 1)\nD = {K: 2, Key(3, 3): 4}\ndef f(x):\n    return x * D.get(K, 7) + (K in D) + (K in {*D})", ("K = Key(1, 2)", "K = Key(1, 1)", "K = Key(3, 3)", "K.b = 9", "D[K] = 5", "K = Key(1, 1); D[K] = 8")),
    Case("key within a tuple", "class Key:\n    def __init__(self, b):\n        self.b = b\n    def __hash__(self):\n        return 1\n    def __eq__(self, other):\n        return self.b == other.b\nK = Key(1)\nD = {(K, 2): 2}\nT = (K, 2)\ndef f(x):\n    return x * D.get(T, 7)", ("T = (Key(2), 2)", "D[T] = 5", "T = (Key(1), 2)")),
    Case("descriptors at the address of those before", "class A:\n    @classmethod\n    def k(cls):\n        return 1\n    @staticmethod\n    def s():\n        return 1\n    @property\n    def p(self):\n        return 1\nO = A()\ndef f(x):\n    return x * A.k() + O.s() * 10 + O.p * 100", ("A.k = classmethod(lambda cls: 3)", "A.k = classmethod(lambda cls: 5)", "A.k = classmethod(lambda cls: 7)", "A.s = staticmethod(lambda: 3)", "A.s = staticmethod(lambda: 5)", "A.s = staticmethod(lambda: 7)", "A.p = property(lambda self: 3)", "A.p = property(lambda self: 5)", "A.p = property(lambda self: 7)")),
    Case("order of keys", "D = {'a': 1.0, 'b': 2.0}\ndef f(x):\n    for v in D.values():\n        x = x * v + 1\n    return x", ("D['a'] = D.pop('a')", "D['b'] = D.pop('b')")),
    Case("order of an ordered dict", "D = collections.OrderedDict(a=1.0, b=2.0)\ndef f(x):\n    for v in D.values():\n        x = x * v + 1\n    return x", ("D.move_to_end('a')", "D.move_to_end('b')")),
    Case("absent attribute of a class", "class A(Plain):\n    pass\nO = A()\ndef f(x):\n    return x * getattr(O, 'k', 2)", ("A.k = 3", "del A.k", "Plain.k = 4", "del Plain.k")),
    Case("attribute of a class", "class A(Plain):\n    k = 2\nO = A()\ndef f(x):\n    return x * O.k", ("A.k = 3", "O.k = 4", "del O.k", "A.k = property(lambda self: 5)")),
    Case("signature of a class", "class A(Plain):\n    def __init__(self, a):\n        pass\ndef f(x):\n    return x + len(inspect.signature(A).parameters)", ("A.__init__ = lambda self, a, b: None", "A.__init__ = lambda self: None")),
    Case("names that dir() lists", "class A(Plain):\n    k = 2\nO = A()\ndef f(x):\n    return x + len([k for k in dir(O) if k[0] != '_'])", ("A.m = 1", "O.n = 2", "del A.k", "Plain.z = 1")),
    Case("attrgetter", "O = Plain()\nO.p = Plain()\nO.p.k = 1\nG = operator.attrgetter('p.k')\nH = operator.attrgetter('p.k', 'p')\ndef f(x):\n    return x + G(O) + H(O)[0]", ("O.p.k = 3", "O.p = Plain(); O.p.k = 5", "del O.p.k")),
    Case("methodcaller", "class A(Plain):\n    def k(self, n):\n        return self.v * n\nO = A()\nO.v = 2\nG = operator.methodcaller('k', 3)\ndef f(x):\n    return x + G(O)", ("O.v = 3", "A.k = lambda self, n: n", "O.k = lambda n: 9")),
    Case("empty slot", "O = Slotted()\ndef f(x):\n    return x + (O.a if hasattr(O, 'a') else -1)", ("O.a = 4", "del O.a", "O.a = 5")),
    Case("bytes that change", "B = bytearray(b'ab')\ndef f(x):\n    return x + B[0] + sum(B) + (3 in B)", ("B[0] = 3", "B.append(4)")),
    Case("array of numpy", "import numpy\nN = numpy.array([1.0, 2.0])\ndef f(x):\n    return x + float(N[0]) + float((-N)[1]) + sum(float(v) for v in N)", ("N[0] = 3", "N[1] = 4")),
    Case("pattern", "import re\nP = re.compile('a+')\ndef f(x):\n    return x + len(P.findall('aabaa'))", ("P = re.compile('a')", "P = re.compile('b')")),
    Case("what a class is matched by", "class A:\n    __match_args__ = ('a', 'b')\n    a, b = 1, 2\nO = A()\ndef f(x):\n    match O:\n        case A(1, b):\n            return x + b\n        case A(a, b):\n            return x - a\n", ("A.__match_args__ = ('b', 'a')", "O.b = 1", "A.__match_args__ = ('a', 'b')")),
    Case("one object under two names, one written", "A = [1]\nB = [1]\ndef f(x):\n    A[0] = 5\n    return x * B[0]", ("A = [1]; B = A", "A = [1]; B = [1]")),
    Case("order of objects", "class A(Plain):\n    def __lt__(self, other):\n        return self.v < other.v\nL = [A(), A()]\nL[0].v, L[1].v = 2, 1\ndef f(x):\n    return x + sorted(L)[0].v", ("A.__lt__ = lambda self, other: self.v > other.v", "L[0].v = 0")),
    Case("dict of a class: membership", "class A(Plain):\n    k = 2\ndef f(x):\n    return x + 1 if 'k' in A.__dict__ else x - 1", ("del A.k", "A.k = 3")),
    Case("dict of a class: item", "class A(Plain):\n    k = 2\ndef f(x):\n    return x * vars(A)['k'] + A.__dict__.get('m', 5)", ("A.k = 3", "A.m = 4", "del A.m", "del A.k")),
    Case("dict of a class: iteration", "class A(Plain):\n    k = 2\ndef f(x):\n    return x + len([k for k in A.__dict__ if k[0] != '_']) * 10 + sum(v for k, v in A.__dict__.items() if k[0] != '_')", ("del A.k", "A.k = 3", "A.m = 4", "A.k = 7")),
    Case("dict of a class in its MRO", "class A(Plain):\n    pass\nO = A()\ndef f(x):\n    return x + [c.__name__ for c in type(O).__mro__ if 'k' in c.__dict__].count('Plain')", ("Plain.k = 1", "A.k = 1", "del Plain.k")),
    Case("code of a function", "def g(x):\n    return x + 1\ndef h(x):\n    return x - 1\ndef f(x):\n    return g(x)", ("g.__code__ = h.__code__",)),
    Case("code of a function that is given", "def f(x, g):\n    return g(x) * 2\nG = lambda x: x + 1", ("G = lambda x: x - 1", "G = lambda x: x * 5"), "(torch.arange(4.0), G)"),
    Case("defaults", "def g(x, k=2):\n    return x * k\ndef f(x):\n    return g(x)", ("g.__defaults__ = (3,)", "g.__defaults__ = (4,)")),
    Case("keyword defaults", "def g(x, *, k=2):\n    return x * k\ndef f(x):\n    return g(x)", ("g.__kwdefaults__ = {'k': 3}", "g.__kwdefaults__['k'] = 4")),
    Case("closure", "def make():\n    k = 2\n    def g(x):\n        return x * k\n    def put(v):\n        nonlocal k\n        k = v\n    return g, put\ng, put = make()\ndef f(x):\n    return g(x)", ("put(3)", "put(2.5)")),
    Case("cell of a function that is given", "def make(k):\n    return lambda x: x * k\ndef f(x, g):\n    return g(x)\nG = make(2)", ("G = make(3)", "G = make(4)"), "(torch.arange(4.0), G)"),
    Case("slot", "O = Slotted()\nO.a = 2\ndef f(x):\n    return x * O.a", ("O.a = 3", "O.a = 4")),
    Case("truth of a class that changes", "class A(Plain):\n    pass\nO = A()\ndef f(x):\n    return x + 1 if O else x - 1", ("A.__bool__ = lambda self: False", "A.__bool__ = lambda self: True", "del A.__bool__")),
    Case("operator of a class that changes", "class A(Plain):\n    def __add__(self, n):\n        return 1\nO = A()\ndef f(x):\n    return x * (O + 1)", ("A.__add__ = lambda self, n: 5",)),
    Case("abstract class", "class A(abc.ABC):\n    pass\nclass B:\n    pass\nO = B()\ndef f(x):\n    return x + 1 if isinstance(O, A) else x - 1", ("A.register(B)",)),
    Case("copies of an object", "class A(Plain):\n    pass\nO, O2 = A(), A()\nO.k, O2.k = 2, 5\ndef f(x):\n    return x * copy.copy(O).k", ("O.k = 3", "A.__copy__ = lambda self: O2", "O2.k = 6"), "(torch.arange(4.0),)"),
    Case("id", "KEEP = O = Plain()\nID = id(O)\ndef f(x, o):\n    return x + (id(o) == ID)", ("O = Plain()",), "(torch.arange(4.0), O)"),
    Case("two names for one object", "A = [1]\nB = A\ndef f(x):\n    A[0] = 5\n    return x * B[0]", ("B = [2]; A[0] = 1", "B = [3]")),
    Case("two names for two objects", "A = [1]\nB = [2]\ndef f(x):\n    A[0] = 5\n    return x * B[0]", ("B = A; A[0] = 1",)),
    Case("is", "A, B = Plain(), Plain()\ndef f(x, a, b):\n    return x + 1 if a is b else x - 1", ("B = A", "B = Plain()"), "(torch.arange(4.0), A, B)"),
    Case("memory that is shared", "def f(x, y):\n    x.add_(1)\n    return y * 2\nP = (torch.arange(4.0), torch.arange(4.0))", ("M = torch.arange(4.0); P = (M, M[:])", "P = (torch.arange(4.0), torch.arange(4.0))"), "P", kernels=True),
    Case("memory that is shared no more", "def f(x, y):\n    x.add_(1)\n    return y * 2\nP = (lambda m: (m, m[:]))(torch.arange(4.0))", ("P = (torch.arange(4.0), torch.arange(4.0))",), "P", kernels=True),
    Case("memory that is shared otherwise", "def f(x, y):\n    x.add_(1)\n    return y * 2\nP = (lambda m: (m[:3], m[:3]))(torch.arange(4.0))", ("P = (lambda m: (m[:3], m[1:4]))(torch.arange(4.0))",), "P", kernels=True),
    Case("memory that overlaps", "def f(x, y):\n    x.add_(1)\n    return y.flip(0) * 2, y.sum()\nP = (torch.arange(4.0), torch.arange(4.0))", ("P = (lambda m: (m[:4], m[1:]))(torch.arange(5.0))", "P = (lambda m: (m[1:], m[:4]))(torch.arange(5.0))"), "P", kernels=True),
    Case("memory written and read in one kernel", "def f(x, y):\n    x.mul_(2)\n    return y + x\nP = (torch.arange(99.0), torch.arange(99.0))", ("P = (lambda m: (m[:99], m[1:]))(torch.arange(100.0))", "P = (torch.arange(99.0), torch.arange(99.0))"), "P", kernels=True),
    Case("memory whose place is seen", "def f(x):\n    return x.as_strided((2,), (1,), 1) * 2\nP = (torch.arange(6.0)[:4],)", ("P = (torch.arange(6.0)[2:],)",), "P", kernels=True),
    Case("sizes", "def f(x):\n    return x * x.shape[0]\nP = (torch.arange(4.0),)", ("P = (torch.arange(6.0),)", "P = (torch.arange(6.0).view(2, 3),)"), "P"),
    Case("strides", "def f(x):\n    return x + x.stride()[0]\nP = (torch.arange(6.0).view(2, 3),)", ("P = (torch.arange(6.0).view(3, 2).t(),)",), "P"),
    Case("dtype", "def f(x):\n    return x / 2, x.dtype\nP = (torch.arange(4.0),)", ("P = (torch.arange(4),)", "P = (torch.arange(4.0).double(),)"), "P"),
    Case("requires_grad", "def f(x):\n    return (x * 2).requires_grad, x + 1\nP = (torch.arange(4.0),)", ("P = (torch.arange(4.0, requires_grad=True),)", "P = (torch.arange(4.0),)"), "P"),
    Case("class of a tensor", "def f(x):\n    return x * (2 if isinstance(x, torch.nn.Parameter) else 3)\nP = (torch.arange(4.0),)", ("P = (torch.nn.Parameter(torch.arange(4.0), False),)",), "P"),
    Case("conjugate", "def f(x):\n    return torch.view_as_real(x.resolve_conj()) * 2, x.is_conj(), x + 1\nP = (torch.complex(torch.arange(4.0), torch.ones(4)),)", ("P = (P[0].conj(),)", "P = (P[0].conj(),)"), "P"),
    Case("tensor of inference mode", "def f(x):\n    return x * 2, x.is_inference()\nP = (torch.arange(4.0),)", ("with torch.inference_mode(): P = (torch.arange(4.0),)",), "P"),
    Case("a parameter in place", "W = torch.nn.Parameter(torch.arange(4.0))\ndef f(x):\n    y = x * W.sum()\n    return y, y.requires_grad, W.shape[0]", ("W.requires_grad_(False)", "W.requires_grad_(True)", "W.data = torch.arange(6.0)", "W.data = torch.arange(4.0).double()")),
    Case("grad mode", "W = torch.ones(4, requires_grad=True)\ndef f(x):\n    y = x * W\n    return y, y.requires_grad", ("torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)")),
    Case("default dtype", "def f(x):\n    return torch.ones(2) + 1", ("torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)")),
    Case("autocast", "W = torch.ones(4, 4)\ndef f(x):\n    return x @ W", ("C = torch.autocast('cpu'); C.__enter__()", "C.__exit__(None, None, None)")),
    Case("inference mode", "P = (torch.arange(4.0),)\ndef f(x):\n    return (x + 1).is_inference()", ("torch.set_grad_enabled(False)", "C = torch.inference_mode(); C.__enter__()", "C.__exit__(None, None, None)"), "P"),
    Case("deterministic algorithms", "def f(x):\n    return x + torch.are_deterministic_algorithms_enabled()", ("torch.use_deterministic_algorithms(True)", "torch.use_deterministic_algorithms(False)")),
    Case("environment", "os.environ['FLASHOVER_A_TEST'] = '2'\ndef f(x):\n    return x * int(os.environ['FLASHOVER_A_TEST'])", ("os.environ['FLASHOVER_A_TEST'] = '3'", "os.environ.pop('FLASHOVER_A_TEST')")),
    Case("numbers that change", "K = 1.0\ndef f(x):\n    return x * K if K < 3.5 else x - K", ("K = 2.0", "K = 3.0", "K = 4.0", "K = 5.0", "K = 1.5"), kernels=True),
    Case("objects that are others on each call", MADE + "H = made('a')\nH.inner = made('a')\nMANY = [made('a') for _ in range(30)]\ndef f(x):\n    return x + 1 if H.inner.mode == 'a' and all(m.mode == 'a' for m in MANY) else x - 1", ("H.inner = made('a')",) * 8 + ("H.inner = made('b')",)),
    Case("a slot that holds again what it held", MADE + "S = Slotted()\nS.a, B = made('a'), made('a')\ndef f(x):\n    return x + 1 if S.a.mode == 'a' else x - 1", ("", "A = S.a; S.a = B", "A.mode = 'b'; S.a = A")),
    Case("a slot of tensors that holds again what it held", "S = Slotted()\nS.a = torch.ones(4)\ndef f(x):\n    return x * S.a", ("", "A = S.a; S.a = torch.ones(4) * 3", "A.data = A.data.double() * 2; S.a = A"), kernels=True),
    Case("a cell that holds again what it held", MADE + "def make():\n    a = made('a')\n    def f(x):\n        return x + 1 if a.mode == 'a' else x - 1\n    return f\nf = make()\nB, C = made('a'), f.__closure__[0]", ("", "A = C.cell_contents; C.cell_contents = B", "A.mode = 'b'; C.cell_contents = A")),
    Case("an item that is again what it was", MADE + "S = [made('a')]\nB = made('a')\ndef f(x):\n    return x + 1 if S[0].mode == 'a' else x - 1", ("", "A = S[0]; S[0] = B", "A.mode = 'b'; S[0] = A")),
    Case("a waiting frame whose function has other code", "def other(x):\n    y = h(x) * 2\n    return y + 100\ndef h(x):\n    f.__code__ = other.__code__\n    stop()\n    return x\ndef f(x):\n    y = h(x) * 2\n    return y + 1", ("", "")),
    Case("a waiting frame whose function gets other code by C", "def other(x):\n    y = h(x) * 2\n    return y + 100\ndef h(x):\n    setattr(f, '__code__', other.__code__)\n    stop()\n    stop()\n    return x\ndef f(x):\n    y = h(x) * 2\n    return y + 1", ("", "")),
    Case("__call__ of a class", "class A(Plain):\n    def __call__(self, x):\n        return x + 1\nf = A()", ("A.__call__ = lambda self, x: x - 1",)),
]  # fmt: skip


def world(case: Case) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "world"}
    exec(compile(HEADER + case.program, f"<{case.name}>", "exec"), space)
    return space


def plain(o: Any, depth: int = 0) -> Any:
    """Anything as what can be compared."""
    if isinstance(o, torch.Tensor):
        return ("tensor", str(o.dtype), tuple(o.shape), o.stride(), o.requires_grad, o.detach().tolist())
    if isinstance(o, dict):
        return (type(o).__name__, [(plain(k), plain(v, depth + 1)) for k, v in o.items()])
    if isinstance(o, (list, tuple, collections.deque)):
        return (type(o).__name__, [plain(v, depth + 1) for v in o])
    if isinstance(o, set):
        return ("set", sorted(map(repr, o)))
    if isinstance(o, type):
        return {k: plain(v) for k, v in vars(o).items() if not k.startswith("__")}
    if type(o).__name__ == "Slotted":
        return {k: plain(getattr(o, k)) for k in ("a", "b") if hasattr(o, k)}
    if type(o).__module__ == "world" and hasattr(o, "__dict__") and depth < 5:
        return (type(o).__name__, plain(vars(o), depth + 1))
    return repr(o) if not callable(o) else "callable"


def call(space: dict[str, Any], f: Callable[..., Any], args: str) -> Any:
    try:
        result = f(*eval(args, space))
    except Exception as e:
        return type(e).__name__, str(e)
    if "CHECK" in space:
        return plain(space["CHECK"](result))
    return plain(result)


@pytest.fixture(autouse=True)
def torch_as_it_was():
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    os.environ.pop("FLASHOVER_A_TEST", None)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_as_eager(case: Case) -> None:
    seen = []
    for compiles in (False, True):
        space = world(case)
        backend = "flashover" if case.kernels else "eager"
        f = flashover.compile(space["f"], backend=backend, options={"recompile_limit": 50}) if compiles else space["f"]
        log = []
        for change in ("", *case.changes):
            exec(change, space)
            log.append((change, call(space, f, case.args), plain(space.get("STATE"))))
        seen.append(log)
        torch.set_grad_enabled(True)
    for expected, got in zip(*seen, strict=True):
        assert got == expected
