"""Between two calls something changes: the next call must give what eager gives, and a no-op must not compile again."""

import collections
import contextlib
import dataclasses
import enum
import types

import pytest
import torch
import torch.nn.functional as F
from processes import in_child

import flashover

GLOBAL = 2.0
TABLE = {"k": 1.0, "unread": 0}
ITEMS = [1.0, 2.0]
SWITCH = types.SimpleNamespace(on=True, level=3)


def helper(x):
    return x + 1


def use_global(x):
    return x * GLOBAL


def use_table(x):
    return x * TABLE["k"] if "k" in TABLE else x - 100


def use_items(x):
    for i in ITEMS:
        x = x * i
    return x


def use_helper(x):
    return helper(x) * 2


def use_switch(x):
    return x + SWITCH.level if SWITCH.on else x - SWITCH.level


def use_builtin(x):
    return x * len(ITEMS)


def use_module_function(x):
    return F.relu(x - 1)


def use_dtype(x):
    return x + torch.ones(x.shape) * 3


def use_grad_mode(x):
    return x + 1 if torch.is_grad_enabled() else x - 1


def use_autocast(x):
    return torch.mm(x, x.t())


class Mode(enum.Enum):
    A = 1
    B = 2


@dataclasses.dataclass
class Config:
    scale: float = 2.0
    act: str = "relu"
    mode: Mode = Mode.A
    inner: object = None


class Block(torch.nn.Module):
    gain = 1.5

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)
        self.register_buffer("buf", torch.ones(4))
        self.config = Config(inner=Config(scale=0.5))
        self.sizes = [1, 2, 3]
        self.names = ("a", "b")
        self.table = {"x": 1.0, "y": 2.0}
        self.order = collections.OrderedDict(p=1.0, q=3.0)
        self.tags = {"one"}
        self.flag = True
        self.act = torch.relu
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Tanh()])
        self.maybe = None

    @property
    def factor(self):
        return 3.0 if self.flag else 4.0

    def scaled(self, x):
        return x * self.gain

    def forward(self, x):
        x = self.lin(x) * self.factor + self.buf
        x = x * self.config.scale + self.config.inner.scale
        if self.config.act == "relu":
            x = torch.relu(x)
        if self.config.mode is Mode.A:
            x = x + 1
        for s in self.sizes:
            x = x + s
        for k, v in self.table.items():
            x = x * v if k == "x" else x + v
        for v in self.order.values():
            x = x * v + 1
        if "one" in self.tags:
            x = x - 1
        x = x + len(self.names)
        x = self.act(x)
        for b in self.blocks:
            x = b(x)
        if self.maybe is not None:
            x = x + self.maybe
        if self.training:
            x = x * 10
        return self.scaled(x)


def block():
    torch.manual_seed(0)
    return Block().eval().requires_grad_(False)


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def set_global(name, value):
    def change():
        old = globals()[name]
        globals()[name] = value
        return lambda: globals().__setitem__(name, old)

    return change


def set_attr(target, name, value):
    def change():
        own = vars(target).get(name)
        old = own if own is not None else getattr(target, name)
        setattr(target, name, value)
        return lambda: setattr(target, name, old)

    return change


def set_item(target, key, value):
    def change():
        old = target[key]
        target[key] = value
        return lambda: target.__setitem__(key, old)

    return change


def shadow_len():
    globals()["len"] = lambda o: 7
    return lambda: globals().pop("len")


# program -> list of (name, change() -> undo(), result differs)
def function_cases():
    yield "global", use_global, set_global("GLOBAL", 5.0)
    yield "global of other type", use_global, set_global("GLOBAL", 5)
    yield "global tensor", use_global, set_global("GLOBAL", torch.tensor(3.0))
    yield "table value", use_table, set_item(TABLE, "k", 4.0)
    yield "table replaced", use_table, set_global("TABLE", {"k": 9.0})
    yield "table without key", use_table, set_global("TABLE", {})
    yield "list item", use_items, set_item(ITEMS, 1, 7.0)
    yield "list slice", use_items, set_item(ITEMS, slice(1, 2), [3.0])
    yield "list longer", use_items, lambda: (ITEMS.append(5.0), ITEMS.pop)[1]
    yield "helper replaced", use_helper, set_global("helper", lambda x: x + 5)
    yield "helper's code", use_helper, set_attr(helper, "__code__", (lambda x: x + 9).__code__)
    yield "namespace flag", use_switch, set_attr(SWITCH, "on", False)
    yield "namespace value", use_switch, set_attr(SWITCH, "level", 8)
    yield "namespace replaced", use_switch, set_global("SWITCH", types.SimpleNamespace(on=True, level=1))
    yield (
        "builtin shadowed",
        use_builtin,
        lambda: (globals().__setitem__("len", lambda o: 7), lambda: globals().pop("len"))[1],
    )
    yield "module function patched", use_module_function, set_attr(F, "relu", lambda x: x * 5)
    yield "module global replaced", use_module_function, set_global("F", types.SimpleNamespace(relu=lambda x: x * 6))


@pytest.mark.parametrize(
    ("name", "fn", "change"), list(function_cases()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_function(name, fn, change):
    c = flashover.compile(fn, backend="eager", fullgraph=True)
    before = fn(X)
    for _ in range(3):
        assert torch.equal(c(X), before)
    count = len(c.entries())
    undo = change()
    try:
        after = fn(X)
        assert not torch.equal(before, after) or name == "global of other type"
        for _ in range(3):
            assert torch.equal(c(X), after)
            assert c(X).dtype == after.dtype
    finally:
        undo()
    assert torch.equal(c(X), before)
    assert len(c.entries()) == count + 1


def module_cases():
    def attr(name, value, path=""):
        def change(m):
            target = m
            for part in filter(None, path.split(".")):
                target = target[int(part)] if part.isdigit() else getattr(target, part)
            old = getattr(target, name)
            setattr(target, name, value)
            return lambda: setattr(target, name, old)

        return change

    def call(do, undo):
        def change(m):
            do(m)
            return lambda: undo(m)

        return change

    yield "train", call(lambda m: m.train(), lambda m: m.eval())
    yield "flag behind property", attr("flag", False)
    yield "config value", attr("scale", 9.0, "config")
    yield "config string", attr("act", "none", "config")
    yield "config enum", attr("mode", Mode.B, "config")
    yield "nested config", attr("scale", 9.0, "config.inner")
    yield "config replaced", attr("config", Config(scale=1.0, inner=Config()))
    yield "list attribute", call(lambda m: m.sizes.append(4), lambda m: m.sizes.pop())
    yield "list item", call(lambda m: m.sizes.__setitem__(0, 9), lambda m: m.sizes.__setitem__(0, 1))
    yield "list replaced", attr("sizes", [5])
    yield "tuple replaced", attr("names", ("a",))
    yield "dict value", call(lambda m: m.table.__setitem__("x", 5.0), lambda m: m.table.__setitem__("x", 1.0))
    yield "dict order", attr("table", {"y": 2.0, "x": 1.5})
    yield "OrderedDict order", call(lambda m: m.order.move_to_end("p"), lambda m: m.order.move_to_end("q"))
    yield "set", call(lambda m: m.tags.discard("one"), lambda m: m.tags.add("one"))
    yield "function attribute", attr("act", torch.sigmoid)
    yield "buffer replaced by other shape", attr("buf", torch.ones(3, 4) * 2)
    yield "buffer to None-able", attr("maybe", torch.ones(4))
    yield "submodule replaced", attr("lin", torch.nn.Linear(4, 4).requires_grad_(False))
    yield "submodule of other class", attr("lin", torch.nn.Identity())
    yield (
        "ModuleList item",
        call(lambda m: m.blocks.__setitem__(1, torch.nn.Sigmoid()), lambda m: m.blocks.__setitem__(1, torch.nn.Tanh())),
    )
    yield "ModuleList shorter", call(lambda m: m.blocks.__delitem__(1), lambda m: m.blocks.append(torch.nn.Tanh()))
    yield "class attribute", lambda m: set_attr(Block, "gain", 7.0)()
    yield "class attribute shadowed", call(lambda m: setattr(m, "gain", 7.0), lambda m: delattr(m, "gain"))
    yield "method patched on class", lambda m: set_attr(Block, "scaled", lambda self, x: x - 4)()
    yield (
        "method patched on object",
        call(lambda m: setattr(m, "scaled", lambda x: x - 4), lambda m: delattr(m, "scaled")),
    )
    yield (
        "forward patched on child",
        call(lambda m: setattr(m.lin, "forward", lambda x: x * 8), lambda m: delattr(m.lin, "forward")),
    )
    yield (
        "class of child",
        call(
            lambda m: setattr(m.blocks[1], "__class__", torch.nn.Sigmoid),
            lambda m: setattr(m.blocks[1], "__class__", torch.nn.Tanh),
        ),
    )
    yield "forward of library class patched", lambda m: set_attr(torch.nn.Tanh, "forward", lambda self, x: x * 3)()
    yield "property replaced", lambda m: set_attr(Block, "factor", property(lambda self: 1.0))()
    yield (
        "own __dict__",
        call(
            lambda m: setattr(m.config, "__dict__", dict(m.config.__dict__, scale=8.0)),
            lambda m: setattr(m.config, "scale", 2.0),
        ),
    )
    yield "double", call(lambda m: m.lin.weight.data.mul_(2), lambda m: m.lin.weight.data.div_(2))

    def hook(register):
        def change(m):
            handle = register(m)
            return handle.remove

        return change

    yield "forward hook", hook(lambda m: m.register_forward_hook(lambda mod, a, out: out + 1))
    yield "child forward hook", hook(lambda m: m.lin.register_forward_hook(lambda mod, a, out: out + 1))
    yield "child pre-hook", hook(lambda m: m.lin.register_forward_pre_hook(lambda mod, a: (a[0] + 1,)))
    yield "kwargs hook", hook(lambda m: m.lin.register_forward_hook(lambda mod, a, k, out: out * 2, with_kwargs=True))
    yield (
        "global hook",
        hook(
            lambda m: torch.nn.modules.module.register_module_forward_hook(
                lambda mod, a, out: out + 1 if isinstance(mod, Block) else None
            )
        ),
    )


@pytest.mark.parametrize(("name", "change"), [pytest.param(*c, id=c[0]) for c in module_cases()])
def test_module(name, change):
    m = block()
    c = flashover.compile(m, backend="eager")
    x = X.clone()
    before = m(x)
    for _ in range(3):
        assert torch.equal(c(x), before)
    inner = c._flashover_callable
    assert inner.entries()[0]["compiled"], inner.entries()[0]
    undo = change(m)
    try:
        after = m(x)
        assert not torch.equal(before, after)
        for _ in range(3):
            assert torch.equal(c(x), after)
    finally:
        undo()
    assert torch.equal(m(x), before)
    for _ in range(2):
        assert torch.equal(c(x), before)


NO_OPS = {
    "nothing": lambda m: None,
    "train and eval": lambda m: (m.train(), m.eval()),
    "same value": lambda m: setattr(m, "flag", True),
    "equal float": lambda m: setattr(m.config, "scale", float("2.0")),
    "new attribute": lambda m: setattr(m, "unread", object()),
    "in-place weight": lambda m: m.lin.weight.data.add_(0.5),
    "state dict": lambda m: m.load_state_dict(m.state_dict()),
    "other weight": lambda m: setattr(m.lin, "weight", torch.nn.Parameter(torch.ones(4, 4), requires_grad=False)),
    "hook and remove": lambda m: m.register_forward_hook(lambda *a: None).remove(),
    "equal list": lambda m: setattr(m, "sizes", list(m.sizes)),
    "equal dict": lambda m: setattr(m, "table", dict(m.table)),
    "read things": lambda m: (repr(m), list(m.parameters()), m.state_dict()),
    "threads": lambda m: torch.set_num_threads(torch.get_num_threads()),
    "counter": lambda m: setattr(m, "calls", getattr(m, "calls", 0) + 1),
    "unrelated global": lambda m: globals().__setitem__("UNREAD", object()),
}


@pytest.mark.parametrize("name", NO_OPS)
def test_no_op_does_not_compile_again(name):
    m = block()
    c = flashover.compile(m, backend="eager")
    x = X.clone()
    for _ in range(20):
        assert torch.equal(c(x), m(x))
        NO_OPS[name](m)
    assert torch.equal(c(x), m(x))
    entries = c._flashover_callable.entries()
    assert len(entries) == 1, entries[0]["recompiled_for"]


@contextlib.contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


MODES = {
    "no_grad": (use_grad_mode, torch.no_grad),
    "inference_mode": (use_grad_mode, torch.inference_mode),
    "autocast": (use_autocast, lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "autocast off inside": (use_autocast, lambda: torch.autocast("cpu", enabled=False)),
    "default dtype": (use_dtype, lambda: default_dtype(torch.float64)),
    "default device": (use_dtype, lambda: torch.device("cpu")),
    "force eager": (use_dtype, lambda: flashover.set_stance("force_eager")),
}


@pytest.mark.parametrize("name", MODES)
def test_modes(name):
    fn, enter = MODES[name]
    c = flashover.compile(fn, backend="eager")

    def check():
        got, want = c(X), fn(X)
        assert torch.equal(got, want)
        assert got.dtype == want.dtype
        assert got.is_inference() == want.is_inference()
        assert got.requires_grad == want.requires_grad

    for _ in range(3):
        check()
        with enter():
            check()
            check()
    assert len(c.entries()) <= 2


def test_input_properties():
    def f(x):
        return torch.sin(x * 2)

    c = flashover.compile(f, backend="eager", options={"recompile_limit": 20})
    base = torch.randn(6, 8)
    inputs = [
        base,
        base.t(),
        base[:, ::2],
        base[1:3],
        base.double(),
        base.int(),
        base > 0,
        base.to(torch.bfloat16),
        torch.randn(0, 3),
        torch.tensor(2.0),
        base.to_sparse(),
        base.clone().requires_grad_(),
        torch.nn.Parameter(base),
        torch.randn(3, dtype=torch.complex64),
        base.to("meta"),
        torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last),
    ]
    for _ in range(2):
        for x in inputs:
            got, want = c(x), f(x)
            assert got.dtype == want.dtype
            assert got.layout == want.layout
            assert got.requires_grad == want.requires_grad
            if want.layout == torch.strided:
                assert got.stride() == want.stride()
                if not want.is_meta:
                    assert torch.equal(got, want)


def test_closures_and_defaults():
    k, steps = 2.0, [1.0]

    def f(x, y=3.0, *, z=None):
        out = x * k + y + steps[0]
        return out if z is None else out * z

    c = flashover.compile(f, backend="eager", fullgraph=True)
    x = X

    def check(*args, **kwargs):
        assert torch.equal(c(*args, **kwargs), f(*args, **kwargs))

    check(x)
    k = 5.0
    check(x)
    steps[0] = 2.0
    check(x)
    steps = [9.0]
    check(x)
    check(x, 4.0)
    check(x, z=2.0)
    f.__defaults__ = (8.0,)
    check(x)
    f.__kwdefaults__ = {"z": 3.0}
    check(x)
    count = len(c.entries())
    check(x, 8.0)
    check(x, y=8.0, z=3.0)
    assert len(c.entries()) == count


def test_object_arguments():
    def f(cfg, batch, *rest, **kw):
        out = batch["x"] * cfg.scale
        if cfg.act == "relu":
            out = torch.relu(out)
        for r in rest:
            out = out + r
        for k in kw:
            out = out - kw[k]
        return {"out": out, "n": len(batch)}

    c = flashover.compile(f, backend="eager", fullgraph=True)

    def check(*args, **kwargs):
        got, want = c(*args, **kwargs), f(*args, **kwargs)
        assert got.keys() == want.keys()
        assert torch.equal(got["out"], want["out"])
        assert got["n"] == want["n"]

    cfg = Config()
    for _ in range(3):
        check(cfg, {"x": torch.randn(3)})
        check(Config(), {"x": torch.randn(3)})
    assert len(c.entries()) == 1
    cfg.scale = 3.0
    check(cfg, {"x": torch.randn(3)})
    check(Config(), {"x": torch.randn(3)})
    check(cfg, {"x": torch.randn(3), "y": 1})
    check(cfg, {"x": torch.randn(3)}, 1.0, torch.ones(3))
    check(cfg, {"x": torch.randn(3)}, k=torch.ones(3))
    check(cfg, {"x": torch.randn(3)}, other=torch.ones(3))
    cfg.act = "gelu"
    check(cfg, {"x": torch.randn(3)})


def test_aliased_inputs_with_a_write():
    def f(x, y):
        x.add_(1)
        return y * 2

    c = flashover.compile(f, backend="eager")
    for make in (
        lambda: (torch.zeros(4), torch.zeros(4)),
        lambda: (a := torch.zeros(4), a),
        lambda: (b := torch.zeros(8), b[4:])[0:1] * 2 if False else (torch.zeros(8)[:4], torch.zeros(4)),
        lambda: tuple(torch.zeros(8).unfold(0, 4, 2)[i] for i in (0, 1)),
        lambda: tuple(torch.zeros(8).unfold(0, 4, 2)[i] for i in (1, 0)),
        lambda: (torch.zeros(4), torch.zeros(4)),
    ):
        for _ in range(2):
            torch.manual_seed(0)
            mine, theirs = make(), make()
            got, want = c(*mine), f(*theirs)
            assert torch.equal(got, want)
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_side_effects_on_every_call():
    log, state = [], {"n": 0}

    class Counter:
        value = 0

    counter = Counter()

    def f(x):
        counter.value += 1
        state["n"] = state["n"] + 2
        log.append(counter.value)
        return x + counter.value

    c = flashover.compile(f, backend="eager")
    for i in range(1, 6):
        assert torch.equal(c(X), X + i)
        assert counter.value == i
        assert state["n"] == 2 * i
        assert log == list(range(1, i + 1))


def test_batch_norm_statistics():
    torch.manual_seed(0)
    m, n = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    c = flashover.compile(m, backend="eager")
    with torch.no_grad():
        for i in range(4):
            x = torch.randn(5, 4) + i
            assert torch.equal(c(x), n(x))
            assert torch.equal(m.running_mean, n.running_mean)
            assert m.num_batches_tracked == i + 1
        m.eval(), n.eval()
        assert torch.equal(c(x), n(x))


def test_random_numbers_go_on():
    def f(x):
        return F.dropout(x, 0.5) + torch.rand_like(x)

    c = flashover.compile(f, backend="eager")
    torch.manual_seed(3)
    want = [f(X) for _ in range(3)]
    state = torch.get_rng_state()
    torch.manual_seed(3)
    got = [c(X) for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_same_object_results():
    def f(x, d):
        d["seen"] = x
        return x, x.view(-1), d

    c = flashover.compile(f, backend="eager")
    for _ in range(3):
        d = {}
        a, b, e = c(X, d)
        assert a is X
        assert e is d
        assert d["seen"] is X
        assert b.data_ptr() == X.data_ptr()


@pytest.mark.parametrize("backend", ["eager", "flashover"])
def test_slices_share_an_entry_unless_their_offset_shows(backend):
    base = torch.randn(10, 7)
    plain = flashover.compile(lambda x: torch.tanh(x) * 2 + x, backend=backend)
    for i in range(8):
        assert torch.allclose(plain(base[i]), torch.tanh(base[i]) * 2 + base[i])
    assert len(plain.entries()) == 1

    def from_start(x):
        return torch.as_strided(x, (3,), (1,), 2) * 2

    strided = flashover.compile(from_start, backend=backend)
    for i in range(4):
        assert torch.equal(strided(base[i]), from_start(base[i]))

    def by_number(x):
        return x + x.storage_offset()

    offset = flashover.compile(by_number, backend=backend)
    for i in range(4):
        assert torch.equal(offset(base[i]), by_number(base[i]))


def test_unaligned_and_threads():
    def f(x):
        return torch.softmax(x * 3, -1).sum(-1) + torch.exp(x).mean(-1)

    c = flashover.compile(f)
    flat = torch.randn(64 * 1000 + 5)
    threads = torch.get_num_threads()
    try:
        for n in (threads, 1, 3):
            torch.set_num_threads(n)
            for shift in range(4):
                x = flat[shift : shift + 64000].view(64, 1000)
                assert torch.allclose(c(x), f(x), rtol=1e-5)
    finally:
        torch.set_num_threads(threads)
    assert len(c.entries()) == 1


def test_fork():
    c = flashover.compile(use_global)
    want = use_global(X)
    assert torch.allclose(c(X), want)
    items = flashover.compile(use_items, backend="eager")
    in_child(lambda: torch.allclose(c(X), want) and torch.allclose(items(X), use_items(X)))
