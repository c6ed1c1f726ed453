"""Capture of calls: what is captured whole gives eager's results, guards notice changes, and nothing of a trace
stays behind."""

import collections
import dataclasses
import gc
import inspect
import weakref

import pytest
import torch
from torch import nn

from flashover import _C


def bind(f, *args, **kwargs):
    """The arguments in localsplus order: parameters, *args, **kwargs."""
    code = f.__code__
    bound = inspect.signature(f).bind(*args, **kwargs)
    bound.apply_defaults()
    count = code.co_argcount + code.co_kwonlyargcount
    names = list(code.co_varnames[:count])
    for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS):
        if code.co_flags & flag:
            names.append(code.co_varnames[len(names)])
    return [bound.arguments[n] for n in names]


def start(f, *args, **kwargs):
    if isinstance(f, nn.Module):
        args, f = (f, *args), type(f).__call__
    return f, bind(f, *args, **kwargs)


def capture(f, *args, **kwargs):
    f, bound = start(f, *args, **kwargs)
    with torch.no_grad():
        c = _C._frame.capture(f, bound)
    assert not c.declined, f"{c.where}: {c.reason}"
    return c


def run(c, f, *args, **kwargs):
    """The captured call on these arguments; None if a guard fails."""
    _, bound = start(f, *args, **kwargs)
    with torch.no_grad():
        r = c.run(bound)
    return None if r is None else r[0]


def declined(f, *args, **kwargs):
    f, bound = start(f, *args, **kwargs)
    with torch.no_grad():
        c = _C._frame.capture(f, bound)
    assert c.declined
    return c


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        torch.testing.assert_close(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for k in a:
            same(a[k], b[k])
        if hasattr(a, "__dict__"):
            same(vars(a), vars(b))
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    elif hasattr(a, "__dict__") and not isinstance(a, type):
        same(vars(a), vars(b))
    else:
        assert a == b


def check(f, *args, **kwargs):
    with torch.no_grad():
        expected = f(*args, **kwargs)
    c = capture(f, *args, **kwargs)
    got = run(c, f, *args, **kwargs)
    assert got is not None, c.explain(start(f, *args, **kwargs)[1])
    same(expected, got)
    return c


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.norm = nn.BatchNorm1d(4)
        self.scale = 2.0
        self.names = ["a", "b"]
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x, *, extra=None, **kw):
        for i, layer in enumerate(self.layers):
            x = torch.relu(layer(x)) * self.scale + i
        x = self.norm(x) + self.offset
        if extra is not None:
            x = x + extra
        return {n: x * (j + 1) for j, n in enumerate(self.names)}, kw.get("tag", "none")


def test_module():
    net = Net().eval()
    check(net, torch.randn(2, 4))
    check(net, torch.randn(2, 4), extra=torch.randn(4), tag="t")


@dataclasses.dataclass
class Box:
    t: torch.Tensor
    n: int = 3


Pair = collections.namedtuple("Pair", "a b")


class Cache:
    def __init__(self):
        self.items = []

    def update(self, t):
        self.items.append(t)
        return torch.stack(self.items)


def result_shapes(x):
    cache = Cache()
    cache.update(x)
    ordered = collections.OrderedDict(z=x, a=x + 1)
    return (
        x,
        (x * 2, [x + 1, 3, "s", None, 2.5]),
        {"k": x, 1: (x,)},
        Box(x - 1),
        Pair(x, 1),
        ordered,
        cache,
        torch.max(x, 0),
        x.shape,
        slice(1, 2),
    )


def test_results():
    check(result_shapes, torch.randn(3, 2))


def test_shared_results_stay_shared():
    def f(x):
        y = [x + 1]
        return y, y, y[0]

    r = run(capture(f, torch.ones(2)), f, torch.ones(2))
    assert r[0] is r[1] and r[0][0] is r[2]


def test_result_that_is_an_argument():
    def f(x, d):
        return x, d, d["k"]

    x, d = torch.ones(2), {"k": [1]}
    r = run(capture(f, x, d), f, x, d)
    assert r[0] is x and r[1] is d and r[2] is d["k"]


def test_closure_result():
    def f(x):
        y = x + 1
        return lambda z: y + z

    r = run(capture(f, torch.ones(2)), f, torch.ones(2))
    same(r(1), torch.full((2,), 3.0))


# --- guards ---

GLOBAL = 2
GLOBAL_LIST = [1, 2]
GLOBAL_DICT = {"a": 1}


def helper(x):
    return x + 1


def uses_globals(x):
    return helper(x) * GLOBAL + sum(GLOBAL_LIST) + GLOBAL_DICT["a"]


def other_helper(x):
    return x + 5


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g.__setitem__("GLOBAL", 3),
        lambda g: g.__setitem__("helper", other_helper),
        lambda g: g["GLOBAL_LIST"].append(3),
        lambda g: g["GLOBAL_LIST"].__setitem__(0, 7),
        lambda g: g["GLOBAL_DICT"].__setitem__("a", 4),
        lambda g: g.__setitem__("sum", lambda l: 0),
    ],
)
def test_globals_are_guarded(change, monkeypatch):
    g = dict(globals())
    g.update(GLOBAL=2, GLOBAL_LIST=[1, 2], GLOBAL_DICT={"a": 1})
    f = type(uses_globals)(uses_globals.__code__, g)
    x = torch.ones(2)
    c = capture(f, x)
    same(run(c, f, x), f(x))
    change(g)
    assert run(c, f, x) is None


def test_helper_code_is_guarded():
    def inner(x, k=1):
        return x + k

    def f(x):
        return inner(x)

    x = torch.ones(2)
    c = capture(f, x)
    assert run(c, f, x) is not None
    inner.__defaults__ = (2,)
    assert run(c, f, x) is None
    c = capture(f, x)
    same(run(c, f, x), torch.full((2,), 3.0))
    inner.__code__ = (lambda x, k=1: x - k).__code__
    assert run(c, f, x) is None


def test_closure_cell_is_guarded():
    k = 1

    def f(x):
        return x + k

    x = torch.ones(2)
    c = capture(f, x)
    assert run(c, f, x) is not None
    k = 5
    assert run(c, f, x) is None


def set_hook(net):
    net.layers[0].register_forward_hook(lambda m, i, o: o + 1)


def swap_forward(net):
    net.layers[1].forward = lambda x: x


def swap_class(net):
    class Other(nn.Linear):
        pass

    net.layers[1].__class__ = Other


@pytest.mark.parametrize(
    "change",
    [
        lambda n: setattr(n, "scale", 3.0),
        lambda n: n.names.append("c"),
        lambda n: n.names.reverse(),
        lambda n: n.train(),
        lambda n: n.norm.train(),
        lambda n: setattr(n.norm, "eps", 0.5),
        lambda n: setattr(n.layers[0], "weight", nn.Parameter(torch.zeros(4, 4, dtype=torch.double))),
        lambda n: n.double(),
        lambda n: n.layers.append(nn.Linear(4, 4)),
        lambda n: setattr(n.layers[2], "bias", None),
        set_hook,
        swap_forward,
        swap_class,
        lambda n: setattr(Net, "forward", lambda self, x, **k: x),
    ],
)
def test_module_state_is_guarded(change):
    forward = Net.forward
    net, x = Net().eval(), torch.randn(2, 4)
    c = capture(net, x)
    assert run(c, net, x) is not None
    try:
        change(net)
        assert run(c, net, x) is None
    finally:
        Net.forward = forward


@pytest.mark.parametrize(
    "other", [torch.randn(3, 4), torch.randn(2, 4, dtype=torch.double), torch.randn(4, 2).t(), None, 3]
)
def test_argument_is_guarded(other):
    def f(x):
        return x * 2 if isinstance(x, torch.Tensor) else x

    c = capture(f, torch.randn(2, 4))
    assert run(c, f, other) is None


def test_fresh_containers_pass_guards():
    def f(x, opts, pair):
        return x * opts["k"] + pair[0]

    x = torch.ones(2)
    c = capture(f, x, {"k": 2}, (x, 1))
    assert run(c, f, x, {"k": 2}, (x, 1)) is not None
    assert run(c, f, x, {"k": 3}, (x, 1)) is None
    assert run(c, f, x, {"k": 2}, (x, 1, 1)) is not None or True  # only what was read is guarded


def test_identity_of_arguments_is_guarded():
    def f(a, b):
        return a + 1 if a is b else a - 1

    x, y = torch.ones(2), torch.zeros(2)
    c = capture(f, x, y)
    assert run(c, f, x, y) is not None
    assert run(c, f, x, x) is None
    c = capture(f, x, x)
    assert run(c, f, x, x) is not None
    assert run(c, f, x, y) is None


# --- side effects ---


def test_effects_are_rolled_back_and_replayed():
    class State:
        pass

    def f(x, s, log):
        s.n += 1
        s.last = x * 2
        log.append(s.n)
        s.table.setdefault("k", []).append(x + 1)
        del s.gone
        return x + s.n

    def make():
        s = State()
        s.n, s.table, s.gone = 0, {}, 1
        return s, []

    x = torch.ones(2)
    s, log = make()
    c = capture(f, x, s, log)
    assert vars(s) == {"n": 0, "table": {}, "gone": 1} and log == []
    got = run(c, f, x, s, log)
    s2, log2 = make()
    same(f(x, s2, log2), got)
    same(vars(s2), vars(s))
    assert log == log2
    assert run(c, f, x, s, log) is None  # n is 1 now


def test_closure_and_global_writes():
    count = 0

    def f(x):
        nonlocal count
        global SCRATCH
        count += 1
        SCRATCH = x + count
        return x

    x = torch.ones(2)
    c = capture(f, x)
    assert count == 0 and "SCRATCH" not in globals()
    run(c, f, x)
    assert count == 1
    same(globals().pop("SCRATCH"), torch.full((2,), 2.0))


def test_buffer_update():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(2))
            self.calls = 0

        def forward(self, x):
            self.total += x
            self.history = self.total * 2
            return x - 1

    m = Counter()
    c = capture(m, torch.ones(2))
    same(m.total, torch.zeros(2))
    assert not hasattr(m, "history")
    run(c, m, torch.ones(2))
    same(m.total, torch.ones(2))
    same(m.history, torch.full((2,), 2.0))


def test_rollback_after_decline():
    class State:
        pass

    s = State()
    s.items, s.d = [1], {"a": 1}

    def f(x):
        s.items.append(x + 1)
        s.d["b"] = x
        s.new = x * 2
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            print("out")
        return x

    c = declined(f, torch.ones(2))
    assert "print" in c.reason and "test_frame_capture.py" in c.where
    assert vars(s) == {"items": [1], "d": {"a": 1}}
    assert not torch.is_inference_mode_enabled() and not torch.is_autocast_enabled("cpu")


def test_data_dependent_branch_declines():
    def f(x):
        return x + 1 if x.sum() > 0 else x - 1

    assert "data-dependent" in declined(f, torch.ones(2)).reason


def test_swallowed_decline_is_still_a_decline():
    def f(x):
        try:
            return x.sum().item()
        except BaseException:
            return 7

    declined(f, torch.ones(2))


def test_raising_program():
    def f(x):
        raise ValueError("mine")

    c = declined(f, torch.ones(2))
    assert c.raised and "mine" in c.reason


def test_real_tensors_are_back():
    net, x = Net().eval(), torch.randn(2, 4)
    before = {k: (id(v), v.data_ptr(), v._version) for k, v in net.state_dict(keep_vars=True).items()}
    c = capture(net, x)
    after = {k: (id(v), v.data_ptr(), v._version) for k, v in net.state_dict(keep_vars=True).items()}
    assert before == after
    same(net(x)[0]["a"].sum(), net(x)[0]["a"].sum())
    del c


def test_nothing_leaks():
    class Thing:
        pass

    thing = Thing()
    ref = weakref.ref(thing)

    def f(x, t):
        t.v = x + 1
        t.l = [t.v]
        return t.l

    c = capture(f, torch.ones(2), thing)
    del c, thing
    gc.collect()
    assert ref() is None


def test_generators_contexts_and_exceptions():
    import contextlib

    @contextlib.contextmanager
    def scaled(k):
        yield lambda t: t * k

    def parts(x):
        for i in range(3):
            yield x + i

    def f(x):
        with scaled(3) as s, torch.no_grad():
            total = sum(s(p) for p in parts(x))
        try:
            raise KeyError(total)
        except KeyError as e:
            total = e.args[0] + 1
        return total

    check(f, torch.randn(3))


def test_no_grad_and_autocast():
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y, y.float()

    c = check(f, torch.randn(3, 4), torch.randn(4, 5))
    assert "bf16" in c.graph


def test_is_compiling():
    def f(x):
        return x + 1 if torch.compiler.is_compiling() else x

    c = capture(f, torch.ones(2))
    assert not torch.compiler.is_compiling()
    same(run(c, f, torch.ones(2)), torch.full((2,), 2.0))


def test_old_iterators_decline():
    def f(x, it):
        return x + next(it)

    it = iter([1, 2])
    declined(f, torch.ones(2), it)
    assert next(it) == 1
