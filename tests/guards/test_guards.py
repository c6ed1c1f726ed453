"""Guard programs: what they notice, what they let pass, and that the fast program agrees with the plain checker."""

import collections
import gc
import random
import sys
import types
import weakref

import pytest
import torch

from flashover import _C


class Recorder:
    """Writes observations by hand, the way the frame interpreter does."""

    def __init__(self):
        self.sources, self.facts, self.objects, self.wanted = [], [], [], []

    def add(self, kind, parent, obj, index=-1, key=None):
        self.sources.append((kind, parent, index, key, obj))
        self.objects.append(obj)
        return len(self.sources) - 1

    def fact(self, kind, source, expected=None, number=0):
        self.facts.append((kind, source, expected, number))

    def arg(self, index, obj):
        return self.observe(self.add("argument", -1, obj, index=index, key=f"a{index}"))

    def observe(self, s):
        """The facts that the kind of object asks for."""
        obj = self.objects[s]
        if isinstance(obj, torch.Tensor):
            self.fact("tensor", s)
        elif isinstance(obj, (bool, int, float, str, type(None), torch.dtype)):
            self.fact("equals", s, obj)
        elif isinstance(obj, (types.FunctionType, type, types.ModuleType, torch.nn.Module)):
            self.fact("identity", s, obj)
        else:
            self.fact("type_is", s, type(obj))
        return s

    def dict_of(self, s):
        return self.add("instance_dict", s, self.objects[s].__dict__)

    def item(self, s, key):
        return self.observe(self.add("dict_item", s, self.objects[s][key], key=key))

    def attr(self, s, name):
        return self.item(self.dict_of(s), name)

    def at(self, s, index):
        return self.observe(self.add("sequence_item", s, self.objects[s][index], index=index))

    def constant(self, obj):
        return self.add("constant_object", -1, obj)

    def build(self):
        program = _C._guards.build(self.sources, self.facts, self.wanted)
        self.sources, self.objects = [], []
        return program


class Box:
    pass


def agree(program, *args):
    """check() and plain() must say the same; returns it."""
    plain = program.plain(args)
    fast = program.check(args) is not None
    assert fast == plain, program.explain(args)
    assert (program.explain(args) == "") == plain
    return fast


def small_model():
    torch.manual_seed(0)
    m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    m.scale = 2.0
    m.items = [1, 2.5, "x"]
    m.pair = (1, [2, 3])
    return m


def observe_module(r, s):
    """As nn.Module.__call__ and forward look at a module."""
    module = r.objects[s]
    d = r.dict_of(s)
    r.item(d, "training")
    for name in ("_forward_hooks", "_forward_pre_hooks"):
        hooks = r.item(d, name)
        r.fact("length", hooks, number=0)
    r.fact("dict_lacks", d, "forward")
    params = r.item(d, "_parameters")
    for key in module._parameters:
        r.wanted.append(r.item(params, key))
    mods = r.item(d, "_modules")
    r.fact("dict_order", mods)
    cls = r.constant(type(module))
    r.observe(r.add("type_lookup", cls, type(module).forward, index=0, key="forward"))
    r.fact("type_lacks", cls, "no_such_method")
    for key in module._modules:
        observe_module(r, r.item(mods, key))


def model_program(m):
    r = Recorder()
    s = r.arg(0, m)
    observe_module(r, s)
    d = r.dict_of(s)
    r.item(d, "scale")
    items = r.item(d, "items")
    for i in range(3):
        r.at(items, i)
    pair = r.item(d, "pair")
    r.at(pair, 0)
    r.at(r.at(pair, 1), 0)
    x = r.arg(1, torch.zeros(5, 3))
    r.wanted.append(x)
    return r.build()


def test_passes_and_delivers_wanted():
    m = small_model()
    p = model_program(m)
    x = torch.ones(5, 3)
    for _ in range(3):
        out = p.check((m, x))
        assert out is not None
        assert out[0] is m[0].weight
        assert out[-1] is x
        assert agree(p, m, x)


CHANGES = {
    "training": lambda m: m.train(),
    "child training": lambda m: setattr(m[2], "training", True),
    "hook": lambda m: m[1].register_forward_hook(lambda *a: None),
    "own forward": lambda m: setattr(m[1], "forward", lambda x: x),
    "attribute": lambda m: setattr(m, "scale", 3.0),
    "attribute type": lambda m: setattr(m, "scale", 2),
    "list item": lambda m: m.items.__setitem__(1, 2.75),
    "shorter list": lambda m: m.items.pop(),
    "tuple's list": lambda m: m.pair[1].__setitem__(0, 7),
    "other tuple": lambda m: setattr(m, "pair", (2, m.pair[1])),
    "child": lambda m: m.__setitem__(1, torch.nn.GELU()),
    "fewer children": lambda m: m.__delitem__(2),
    "more children": lambda m: m.append(torch.nn.ReLU()),
    "parameter dtype": lambda m: m[0].double(),
    "requires_grad": lambda m: m[0].weight.requires_grad_(False),
    "data": lambda m: setattr(m[0].weight, "data", torch.zeros(4, 3, dtype=torch.float64)),
    "parameter gone": lambda m: m[0].register_parameter("bias", None),
    "class": lambda m: setattr(m[1], "__class__", torch.nn.GELU),
    "dict": lambda m: setattr(m[0], "__dict__", dict(m[0].__dict__, training=True)),
    "deleted": lambda m: delattr(m, "scale"),
    "NaN": lambda m: setattr(m, "scale", float("nan")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_notices(name):
    m = small_model()
    p = model_program(m)
    x = torch.ones(5, 3)
    assert agree(p, m, x)
    CHANGES[name](m)
    assert not agree(p, m, x)
    assert not agree(p, m, x)


NO_CHANGES = {
    "same value": lambda m: setattr(m, "scale", float("2.0")),
    "other attribute": lambda m: setattr(m, "unread", 1),
    "there and back": lambda m: (m.train(), m.eval()),
    "in-place update": lambda m: m[0].weight.data.add_(1),
    "load_state_dict": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "equal parameter": lambda m: setattr(m[0], "weight", torch.nn.Parameter(torch.ones(4, 3))),
    "equal list": lambda m: setattr(m, "items", list(m.items)),
    "equal tuple": lambda m: setattr(m, "pair", (1, list(m.pair[1]))),
    "equal dict": lambda m: setattr(m[0], "__dict__", dict(m[0].__dict__)),
    "hook added and removed": lambda m: m[1].register_forward_hook(lambda *a: None).remove(),
    "unrelated class attribute": lambda m: (setattr(torch.nn.ReLU, "zzz", 1), delattr(torch.nn.ReLU, "zzz")),
}


@pytest.mark.parametrize("name", NO_CHANGES)
def test_lets_pass(name):
    m = small_model()
    p = model_program(m)
    x = torch.ones(5, 3)
    for _ in range(40):  # also after many re-checks
        NO_CHANGES[name](m)
        assert agree(p, m, x)
    assert p.check((m, x))[0] is m[0].weight


def test_class_patched_and_restored():
    m = small_model()
    p = model_program(m)
    x = torch.ones(5, 3)
    old = torch.nn.ReLU.forward
    try:
        torch.nn.ReLU.forward = lambda self, x: x
        assert not agree(p, m, x)
        torch.nn.ReLU.forward = old
        assert agree(p, m, x)
        torch.nn.ReLU.no_such_method = 1
        assert not agree(p, m, x)
    finally:
        torch.nn.ReLU.forward = old
        if "no_such_method" in torch.nn.ReLU.__dict__:
            del torch.nn.ReLU.no_such_method
    assert agree(p, m, x)


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(5, 4)[:, :3],
        torch.ones(4, 3),
        torch.ones(5, 3, dtype=torch.float64),
        torch.ones(5, 3, requires_grad=True),
        torch.nn.Parameter(torch.ones(5, 3), requires_grad=False),
        torch.ones(3, 5).t(),
        torch.ones(5, 3, device="meta"),
        torch.ones(5, 3, dtype=torch.complex64).conj().real,
        torch.ones(1, 5, 3),
        "no tensor",
        None,
    ],
    ids=lambda x: str(getattr(x, "shape", x)),
)
def test_tensor_metadata(x):
    m = small_model()
    p = model_program(m)
    assert not agree(p, m, x)
    assert agree(p, m, torch.rand(5, 3))


def states():
    yield "no_grad", torch.no_grad
    yield "inference_mode", torch.inference_mode
    yield "autocast", lambda: torch.autocast("cpu", dtype=torch.bfloat16)
    yield (
        "autocast cuda",
        lambda: torch.autocast("cuda", enabled=True) if torch.cuda.is_available() else torch.no_grad(),
    )
    yield "default device", lambda: torch.device("meta")


def test_autocast_dtype_counts():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        p = model_program(m := small_model())
        x = torch.ones(5, 3)
        assert agree(p, m, x)
    assert not agree(p, m, x)
    with torch.autocast("cpu", dtype=torch.float16):
        assert not agree(p, m, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert agree(p, m, x)


@pytest.mark.parametrize(("name", "enter"), list(states()), ids=lambda v: v if isinstance(v, str) else "")
def test_global_state(name, enter):
    m, x = small_model(), torch.ones(5, 3)
    p = model_program(m)
    with enter():
        assert not agree(p, m, x)
        assert p.explain((m, x))
    assert agree(p, m, x)
    assert _C._guards.state_to_avoid() is None


@pytest.mark.parametrize(
    ("set_", "reset"),
    [
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
        (lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)),
        (lambda: torch.set_float32_matmul_precision("medium"), lambda: torch.set_float32_matmul_precision("highest")),
        (
            lambda: torch._C._set_cudnn_benchmark(True),  # torch.testing freezes the attribute of torch.backends
            lambda: torch._C._set_cudnn_benchmark(False),
        ),
    ],
)
def test_global_settings(set_, reset):
    m, x = small_model(), torch.ones(5, 3)
    p = model_program(m)
    set_()
    try:
        assert not agree(p, m, x)
    finally:
        reset()
    assert agree(p, m, x)
    torch.set_num_threads(torch.get_num_threads())
    assert agree(p, m, x)


def test_parameters_are_compared_by_what_they_look_like():
    """Quick compares of tensors hang on how torch lays them out: with another torch they would be left out unseen."""
    m, x = small_model(), torch.ones(5, 3)
    p = model_program(m)
    assert agree(p, m, x)
    assert "tensors" in p.parts()
    assert "in full" not in p.parts()


def test_a_view_requires_grad_as_soon_as_its_base_does():
    """Nothing of the view's own shows it."""
    m, base = Box(), torch.ones(2, 3)
    m.view, m.more, m.other, m.name = base.view(3, 2), torch.ones(2), torch.ones(3), "x"

    def build():
        r = Recorder()
        d = r.dict_of(r.arg(0, m))
        for name in ("view", "more", "other", "name"):
            r.item(d, name)
        return r.build()

    p = build()
    assert agree(p, m)
    assert agree(p, m)
    base.requires_grad_()
    assert not agree(p, m)
    assert p.explain((m,)).endswith("requires_grad is True, not False")
    p = build()
    assert agree(p, m)
    base.requires_grad_(False)
    assert not agree(p, m)


def test_words():
    m, x = small_model(), torch.ones(5, 3)
    p = model_program(m)
    text = "\n".join(p.words())
    assert "a0.training is False" in text
    assert "a0.0.weight is a tensor Float[4,3]" in text
    m.train()
    assert p.explain((m, x)).startswith("a0.training is False; now True")


def test_cells_functions_and_globals():
    factor, table = 2, {"k": 1}

    def f(x):
        return x * factor + table["k"]

    r = Recorder()
    fn = r.add("callable", -1, f)
    for i in range(2):
        cell = r.add("closure_cell", fn, f.__closure__[i], index=i)
        value = r.observe(r.add("cell_contents", cell, f.__closure__[i].cell_contents))
        if isinstance(f.__closure__[i].cell_contents, dict):
            r.item(value, "k")
    g = r.add("globals", -1, f.__globals__)
    r.item(g, "Box")
    r.fact("dict_lacks", g, "surely_not_defined")
    r.fact("code_is", fn, f.__code__)
    r.observe(r.add("slot", fn, f.__defaults__, key="__defaults__"))
    p = r.build()
    assert agree(p)
    factor = 3
    assert not agree(p)
    factor = 2
    assert agree(p)
    table["k"] = 5
    assert not agree(p)
    table = {"k": 1}
    assert agree(p)
    globals()["surely_not_defined"] = 1
    assert not agree(p)
    del globals()["surely_not_defined"]
    assert agree(p)
    f.__defaults__ = (1,)
    assert not agree(p)
    f.__defaults__ = None
    assert agree(p)
    f.__code__ = (lambda x: x + factor + table["k"]).__code__
    assert not agree(p)


def test_ordered_dict_order_without_a_tag_change():
    od = collections.OrderedDict(a=1, b=2)
    r = Recorder()
    s = r.arg(0, od)
    r.fact("dict_order", s)
    r.observe(r.add("dict_value_at", s, 1, index=0))
    p = r.build()
    assert agree(p, od)
    od.move_to_end("a")
    assert not agree(p, od)
    od.move_to_end("b")
    assert agree(p, od)


def test_argument_containers_made_anew():
    r = Recorder()
    t = (torch.ones(2), 3, {"k": torch.ones(3)})
    s = r.arg(0, t)
    r.fact("length", s, number=3)
    r.wanted.append(r.at(s, 0))
    r.at(s, 1)
    r.wanted.append(r.item(r.at(s, 2), "k"))
    p = r.build()
    for _ in range(100):
        a, b = torch.rand(2), torch.rand(3)
        assert [id(x) for x in p.check(((a, 3, {"k": b}),))] == [id(a), id(b)]
    assert not agree(p, (a, 4, {"k": b}))
    assert not agree(p, (a, 3, {"k": a}))
    assert not agree(p, (a, 3, {}))
    assert not agree(p, [a, 3, {"k": b}])
    assert not agree(p, (a, 3))


def test_aliases():
    base = torch.zeros(8)
    r = Recorder()
    a, b, _ = (r.arg(i, t) for i, t in enumerate((base[:4], base[2:6], torch.ones(4))))
    r.fact("tensor_aliases", a, number=b)
    r.fact("not_aliases", -1)
    p = r.build()
    other = torch.rand(9)
    assert agree(p, other[1:5], other[3:7], torch.rand(4))
    assert not agree(p, other[1:5], other[2:6], torch.rand(4))
    assert not agree(p, torch.rand(4), torch.rand(4), torch.rand(4))
    assert not agree(p, other[1:5], other[3:7], other[5:9])
    array = torch.rand(4).numpy()
    assert agree(p, other[1:5], other[3:7], torch.from_numpy(array))
    r = Recorder()
    r.arg(0, torch.zeros(4)), r.arg(1, torch.zeros(4))
    r.fact("not_aliases", -1)
    p = r.build()
    assert agree(p, torch.zeros(4), torch.zeros(4))
    assert not agree(p, torch.from_numpy(array), torch.from_numpy(array))
    x = torch.zeros(4)
    assert not agree(p, x, x)


def test_same_and_distinct_objects():
    a, b = Box(), Box()
    r = Recorder()
    x, y, z = r.arg(0, a), r.arg(1, a), r.arg(2, b)
    r.fact("same_object", y, number=x)
    r.fact("distinct", z, number=x)
    p = r.build()
    assert agree(p, a, a, b)
    assert agree(p, b, b, a)
    assert not agree(p, a, b, b)
    assert not agree(p, a, a, a)


def test_holds_no_user_object():
    m = small_model()
    p = model_program(m)
    ref = weakref.ref(m)
    before = sys.getrefcount(m[0].weight)
    passed = p.check((m, torch.ones(5, 3))) is not None
    assert passed
    after = sys.getrefcount(m[0].weight)
    assert after == before
    del m
    gc.collect()
    assert ref() is None
    for _ in range(20):  # new models at reused addresses are other models: identity was guarded
        assert not agree(p, small_model(), torch.ones(5, 3))


def test_function_at_a_reused_address():
    box = Box()

    def make(k):
        return lambda: k

    box.items = [make(1)]
    r = Recorder()
    r.at(r.attr(r.arg(0, box), "items"), 0)
    p = r.build()
    assert agree(p, box)
    for k in range(50):
        box.items[0] = None
        box.items[0] = make(k)
        assert not agree(p, box)


# ---- random worlds ----


def random_value(rng, depth):
    kind = rng.randrange(12 if depth else 7)
    if kind == 0:
        return rng.randrange(3)
    if kind == 1:
        return rng.choice([0.0, -0.0, 1.5, float("nan")])
    if kind == 2:
        return rng.choice(["a", "b"])
    if kind == 3:
        return rng.choice([True, False, None])
    if kind == 4:
        return torch.zeros(rng.choice([(2,), (3,), (2, 3)]), dtype=rng.choice([torch.float32, torch.int64]))
    if kind == 5:
        k = rng.randrange(2)
        return lambda: k
    if kind == 6:
        return rng.choice([torch.float32, Box, torch])
    children = [random_value(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    if kind == 7:
        return children
    if kind == 8:
        return tuple(children)
    if kind == 9:
        return {f"k{i}": c for i, c in enumerate(children)}
    if kind == 10:
        return collections.OrderedDict((f"k{i}", c) for i, c in enumerate(children))
    box = Box()
    for i, c in enumerate(children):
        setattr(box, f"k{i}", c)
    return box


def explore(rng, r, s, targets):
    obj = r.objects[s]
    r.observe(s)
    if isinstance(obj, Box):
        targets.append(obj)
        d = r.dict_of(s)
        if rng.random() < 0.3:
            r.fact("instance_dict_is", s)
        explore_dict(rng, r, d, targets, observe=False)
        if rng.random() < 0.3:
            cls = r.constant(Box)
            r.fact("type_lacks", cls, rng.choice(["patched", "other"]))
    elif isinstance(obj, dict):
        targets.append(obj)
        explore_dict(rng, r, s, targets)
    elif isinstance(obj, (list, tuple)):
        if isinstance(obj, list):
            targets.append(obj)
        if rng.random() < 0.5:
            r.fact("length", s, number=len(obj))
        for i, c in enumerate(obj):
            if rng.random() < 0.8:
                explore(rng, r, r.add("sequence_item", s, c, index=i), targets)
    elif isinstance(obj, types.FunctionType) and obj.__closure__:
        targets.append(obj)
        cell = r.add("closure_cell", s, obj.__closure__[0], index=0)
        r.observe(r.add("cell_contents", cell, obj.__closure__[0].cell_contents))


def explore_dict(rng, r, s, targets, observe=True):
    obj = r.objects[s]
    if rng.random() < 0.4:
        r.fact("length", s, number=len(obj))
    if rng.random() < 0.3:
        r.fact("dict_order", s)
    if rng.random() < 0.4:
        r.fact("dict_lacks", s, "new")
    for i, (k, v) in enumerate(obj.items()):
        if rng.random() < 0.7:
            explore(rng, r, r.add("dict_item", s, v, key=k), targets)
        elif rng.random() < 0.5:
            explore(rng, r, r.add("dict_value_at", s, v, index=i), targets)


def mutate(rng, target):
    value = random_value(rng, 1)
    if isinstance(target, Box):
        target = target.__dict__ if rng.random() < 0.9 else target
    if isinstance(target, dict):
        how = rng.randrange(6)
        keys = list(target)
        if how == 0 or not keys:
            target["new"] = value
        elif how == 1:
            target[rng.choice(keys)] = value
        elif how == 2:
            del target[rng.choice(keys)]
        elif how == 3:
            old = target[k := rng.choice(keys)]
            target[k] = value
            target[k] = old
        elif how == 4 and isinstance(target, collections.OrderedDict):
            target.move_to_end(rng.choice(keys))
        else:  # an equal copy in place of a value
            k = rng.choice(keys)
            v = target[k]
            target[k] = type(v)(v) if type(v) in (list, tuple, dict, int, float) else v
    elif isinstance(target, list):
        how = rng.randrange(4)
        if how == 0 or not target:
            target.append(value)
        elif how == 1:
            target[rng.randrange(len(target))] = value
        elif how == 2:
            target.pop()
        else:
            i = rng.randrange(len(target))
            target[i] = type(target[i])(target[i]) if type(target[i]) in (list, tuple, dict, int, float) else target[i]
    elif isinstance(target, types.FunctionType):
        target.__closure__[0].cell_contents = rng.randrange(2)
    elif isinstance(target, Box):
        target.__dict__ = dict(target.__dict__)


@pytest.mark.parametrize("seed", range(300))
def test_program_agrees_with_plain_checker(seed):
    rng = random.Random(seed)
    root = Box()
    for i in range(rng.randrange(1, 5)):
        setattr(root, f"k{i}", random_value(rng, 3))
    extra = random_value(rng, 2)
    r, targets = Recorder(), []
    explore(rng, r, r.add("argument", -1, root, index=0), targets)
    explore(rng, r, r.add("argument", -1, extra, index=1), targets)
    r.wanted = list(range(len(r.sources)))
    objects = [weakref.ref(o) if isinstance(o, Box) else None for o in r.objects]
    p = r.build()
    assert agree(p, root, extra)
    assert len(objects) == len(p.check((root, extra)))
    seen = {True: 0, False: 0}
    for _ in range(30):
        if rng.random() < 0.2:
            extra = random_value(rng, 2)
        elif targets:
            mutate(rng, rng.choice(targets))
        patched = rng.random() < 0.1
        if patched:
            Box.patched = 1
        try:
            seen[agree(p, root, extra)] += 1
            seen[agree(p, root, extra)] += 1
        finally:
            if patched:
                del Box.patched
    assert sum(seen.values()) == 60
