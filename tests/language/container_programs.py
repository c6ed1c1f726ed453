"""Containers inside a capture: small programs, each f(x, state), for test_language_programs.py."""
# ruff: noqa - one idea a line, in the old and odd ways that programs are written in, too

import enum
import operator
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, UserString, defaultdict, deque, namedtuple
from typing import (
    Any,
    NamedTuple,
)

import torch
from programs import Programs

PROGRAMS = p = Programs()


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
def mappingproxy_handed_out(x, S):
    mine = {"y": x + 1}
    return types.MappingProxyType(mine), types.MappingProxyType(S.d), mine


@p
def generic_aliases_handed_out(x, S):
    return x + 1, list[int], dict[str, list[torch.Tensor]], tuple[int, ...], list[int] | None


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
