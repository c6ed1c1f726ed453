"""Side effects, aliases, and code that is made in a call inside a capture: small programs, each f(x, state), for test_language_programs.py."""
# ruff: noqa - one idea a line, in the old and odd ways that programs are written in, too

import abc
import copy
import dataclasses
import enum
import random
import sys
import types
from collections import namedtuple
from dataclasses import InitVar, dataclass, field

import torch
from outcomes import SlS
from outcomes import State as NS
from programs import Programs
from torch import nn

PROGRAMS = p = Programs()
G = {"k": 1}
GN = 0


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
