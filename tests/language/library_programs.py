"""Copies, typing, logging and what torch has of its own inside a capture: small programs, each f(x, state), for test_language_programs.py."""
# ruff: noqa - one idea a line, in the old and odd ways that programs are written in, too

import copy
import json
import logging
import os
import random
import re
import sys
import textwrap
import threading
import time
import types
import warnings
from typing import (
    TYPE_CHECKING,
    Dict,
    List,
    Literal,
    Optional,
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
from programs import Programs

PROGRAMS = p = Programs()
G = {"k": 1}
GN = 0


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


@torch.profiler.record_function("decorated")
def decorated_with_a_record(x, n):
    return x.sin() if n == 0 else decorated_with_a_record(x, n - 1) * 2


@p
def t_record_function_as_decorator(x, S):
    return decorated_with_a_record(x, 2)


OLD_RECORD = torch.profiler.record_function("old")


@p
def t_record_function_from_before(x, S):
    with OLD_RECORD:
        y = x * 2
    return y


@torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH], set_priority=True)
def decorated_attention(x):
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)


@p
def t_priority_of_attention_kernels(x, S):
    before = torch._C._get_sdp_priority_order()
    y = decorated_attention(x)
    before.append(7)
    return y, before, torch._C._get_sdp_priority_order()


@p
def t_operators_of_the_profiler(x, S):
    record = torch.ops.profiler._record_function_enter_new("part", None)
    y = x * 2
    torch.ops.profiler._record_function_exit._RecordFunction(record)
    return y


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
