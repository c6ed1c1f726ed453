"""A diagonal of the identity matrix (tests/fuzz/fuzz_identity.py runs all of it), and what its cells do not ask."""

import abc
import gc
import warnings
import weakref

import pytest
import torch
from fuzz_identity import PLACES, WHEN, check
from identity_acts import ACTS, SLOW
from identity_kinds import KINDS
from torch import nn

import flashover

WAYS = [(when, place) for when in WHEN for place in PLACES]
SMALL = [k for k in KINDS.values() if not k.big]


@pytest.mark.parametrize("kind", SMALL, ids=lambda k: k.name)
def test_acts(kind):
    """Each act once for each kind; how it is compiled and where it stands go round."""
    wrong = []
    for at, name in enumerate(n for n in ACTS if n not in SLOW or kind.name == "linear"):
        when, place = WAYS[(at + SMALL.index(kind)) % len(WAYS)]
        wrong += [f"{name}, {when}, {place}: {text}" for text in check(kind, [name], when, place, "eager")]
    assert not wrong, "\n".join(wrong)


def test_a_difference_is_seen(monkeypatch):
    """The comparison: a compiled module whose copies run the original is found."""
    kind = KINDS["sequential"]
    assert not check(kind, ["deepcopy"], "before", "alone", "eager")
    monkeypatch.setattr(flashover._compiled_module.CompiledModule, "__deepcopy__", lambda self, memo: self._orig_mod)
    assert check(kind, ["deepcopy"], "before", "alone", "eager")


SEQUENCES = [
    ("linear", "raw_new slot_hidden"),
    ("parametrized", "raw_new class_assigned class_assigned_and_back replica"),
    ("abstract", "class_assigned questions"),
    ("abstract", "subclass_by_type questions"),
    ("graph_module", "raw_new pickled_old_protocol"),
    ("graph_module", "modes fork_pickled raw_new pickled_cycle graph_recompiled"),
    ("graph_module", "forward_bound_anew saved"),
]


@pytest.mark.parametrize(("kind", "acts"), SEQUENCES, ids="-".join)
def test_acts_one_after_another(kind, acts):
    """What longer ones found."""
    for when, place in (("before", "alone"), ("before", "inside compiled")):
        assert not check(KINDS[kind], acts.split(), when, place, "eager")


def test_a_raw_instance_of_a_compiled_class_is_an_ordinary_one():
    c = flashover.compile(nn.Linear(2, 2), backend="eager")
    assert type(object.__new__(type(c))) is nn.Linear
    assert type(nn.Module.__new__(type(c))) is nn.Linear


def test_an_abstract_class_is_asked_of_strangers():
    """ABCMeta asks all subclasses in turn, the one of compiled modules among them."""

    class Model(nn.Module, abc.ABC):
        def forward(self, x):
            return x + 1

    c = flashover.compile(Model(), backend="eager")
    for cls in (Model, type(c)):
        assert isinstance(c, cls)
        assert not isinstance(3, cls)
        assert not issubclass(dict, cls)


def test_a_graph_module_is_recompiled():
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    c, x = flashover.compile(graph, backend="eager"), torch.ones(1, 2)
    c(x)
    for node in c.graph.nodes:
        if node.op == "output":
            node.args = (node.args[0].args[0],)
    c.recompile()
    assert torch.equal(c(x), graph.get_submodule("0")(x))
    assert torch.equal(graph(x), graph.get_submodule("0")(x))


def test_vars_of_a_compiled_class():
    c = flashover.compile(nn.Linear(2, 2), backend="eager")
    assert vars(type(c)) == vars(nn.Linear)


def test_one_class_for_all():
    a, b = (flashover.compile(nn.Linear(2, 2)) for _ in range(2))
    assert type(a) is type(b)
    assert type(a) is not nn.Linear
    assert type(a) == nn.Linear  # noqa: E721


def test_modules_are_freed():
    class Local(nn.Module):
        def forward(self, x):
            return x + 1

    m = Local()
    m.itself = flashover.compile(m, backend="eager")  # a cycle through the compiled module
    m.itself(torch.ones(2))
    m.itself.forward(torch.ones(2))
    refs = [weakref.ref(o) for o in (m, m.itself, m.itself._flashover_callable)]
    del m
    gc.collect()
    assert [r() for r in refs] == [None] * len(refs)


def test_the_original_stays_ordinary():
    m = nn.Sequential(nn.Linear(2, 2))
    before = dict(vars(m)), dict(vars(nn.Sequential)), type(m)
    c = flashover.compile(m, backend="eager")
    c(torch.ones(1, 2))
    c.forward(torch.ones(1, 2))
    assert (dict(vars(m)), dict(vars(nn.Sequential)), type(m)) == before
    assert "forward" not in vars(m)


def test_two_of_one_original():
    m = nn.Linear(2, 2)
    a, b = flashover.compile(m, backend="eager"), flashover.compile(m, backend="eager", fullgraph=True)
    a.added = 1
    assert b.added == 1
    b.__class__ = type("Other", (nn.Linear,), {"shift": lambda self: 5})
    assert a(torch.ones(1, 2)).shape == (1, 2)
    assert a.shift() == b.shift() == m.shift() == 5


def test_a_failed_class_assignment_changes_nothing():
    class Slots(nn.Linear):
        __slots__ = ("more",)

    m = nn.Linear(2, 2)
    c = flashover.compile(m, backend="eager")
    with pytest.raises(TypeError, match="layout differs"):
        c.__class__ = Slots
    assert type(m) is nn.Linear
    assert c.__class__ is nn.Linear
    assert c(torch.ones(1, 2)).shape == (1, 2)


def test_forward_of_a_compiled_class_is_an_ordinary_function():
    c = flashover.compile(nn.Linear(2, 2), backend="eager")
    assert type(c).forward is nn.Linear.forward
    with pytest.raises(AttributeError):
        c._orig_mod = 3


def test_nothing_is_said_of_ordinary_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c = flashover.compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        torch.fx.symbolic_trace(nn.Sequential(c))
        c[:1](torch.ones(1, 2))


def module_level(x):
    return x + 1


plain = module_level
module_level = flashover.compile(module_level, backend="eager")


class Holder(nn.Module):
    @flashover.compile(backend="eager")
    def method(self, x):
        return x * self.k

    def __init__(self):
        super().__init__()
        self.k = 2.0


def test_functions_and_methods_are_copied_and_pickled():
    import copy
    import functools
    import pickle

    x = torch.ones(2)
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert copy.copy(module_level) is module_level
    assert copy.deepcopy([module_level])[0] is module_level
    assert pickle.loads(pickle.dumps(Holder.method)) is Holder.method
    h = Holder()
    for other in (copy.deepcopy(h.method), pickle.loads(pickle.dumps(h.method))):
        other.__self__.k = 5.0
        assert torch.equal(other(x), x * 5)
        assert h.k == 2.0
    bound = flashover.compile(h.method.__func__.__wrapped__.__get__(h), backend="eager")
    other = copy.deepcopy(bound)
    h.k = 3.0
    assert torch.equal(bound(x), x * 3)
    assert torch.equal(other(x), x * 2)
    part = flashover.compile(functools.partial(plain), backend="eager")
    assert torch.equal(copy.deepcopy(part)(x), x + 1)
    assert torch.equal(module_level.__call__(x), x + 1)
    assert torch.equal(type(module_level).__call__(module_level, x), x + 1)
