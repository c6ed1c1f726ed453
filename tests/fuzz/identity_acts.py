"""Ways to make a module from a module or its class, to change one, and to ask about one: rows of the identity matrix.

An act is a function of a module and a `note` function, which takes down what it found. A module that it returns takes
the place of the one it got. It must do the same to a compiled module as to the ordinary one."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import tempfile
import types
import typing
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import nn

Note = Callable[[Any], None]
Act = Callable[..., Any]  # of a module, note, and the kind it is of
ACTS: dict[str, Act] = {}


def act(function: Act) -> Act:
    ACTS[function.__name__.strip("_")] = function
    return function


def linears(m: nn.Module) -> list[nn.Linear]:
    return [c for c in m.modules() if isinstance(c, nn.Linear)]


# ---- new modules ----


@act
def nothing(m, note, kind):
    pass


@act
def copy_(m, note, kind):
    return copy.copy(m)


@act
def deepcopy(m, note, kind):
    made = copy.deepcopy(m)
    note(made is not m)
    return made


@act
def deepcopy_in_list(m, note, kind):
    a, b = copy.deepcopy([m, m])
    note(a is b)
    return a


@act
def deepcopy_of_cycle(m, note, kind):
    m.itself = [m]
    made = copy.deepcopy(m)
    note(made.itself[0] is made)
    del made.itself, m.itself
    return made


@act
def pickled(m, note, kind):
    return pickle.loads(pickle.dumps(m))


@act
def pickled_cycle(m, note, kind):
    m.itself = [m]
    made = pickle.loads(pickle.dumps(m))
    note(made.itself[0] is made)
    del made.itself, m.itself
    return made


@act
def pickled_old_protocol(m, note, kind):
    return pickle._loads(pickle._dumps(m, 2))


@act
def fork_pickled(m, note, kind):
    return pickle.loads(bytes(ForkingPickler.dumps(m)))


@act
def saved(m, note, kind):
    file = io.BytesIO()
    torch.save({"model": m, "class": type(m)}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    note(type(loaded["model"]) == loaded["class"])  # noqa: E721
    return loaded["model"]


@act
def from_its_type(m, note, kind):
    made = kind.again(type(m))
    note([isinstance(made, type(m)), isinstance(made, m.__class__)])
    return made


@act
def from_its_class(m, note, kind):
    return kind.again(m.__class__)


@act
def slice_(m, note, kind):
    return m[:2]


@act
def rest_of_it(m, note, kind):
    return m[1:]


@act
def doubled(m, note, kind):
    return m + m


@act
def slice_of_list(m, note, kind):
    m.layers = m.layers[:2]


@act
def own_factory(m, note, kind):
    return m.smaller()


@act
def replica(m, note, kind):
    made = m._replicate_for_data_parallel()
    made._parameters = {k: v and nn.Parameter(v.detach() * 2) for k, v in m._parameters.items()}
    made._modules = {k: copy.deepcopy(v) for k, v in m._modules.items()}
    return made


@act
def data_parallel(m, note, kind):
    return nn.DataParallel(m)


@act
def raw_new(m, note, kind):
    made = object.__new__(type(m))
    made.__dict__ = copy.deepcopy(m.__dict__)
    note([made.__class__ == m.__class__, isinstance(made, m.__class__)])
    return made


@act
def new_of_class(m, note, kind):
    made = type(m).__new__(type(m))
    made.__dict__.update(copy.deepcopy(m.__dict__))
    return made


class Mixed:
    def shift(self) -> float:
        return 1.0


@act
def subclass(m, note, kind):
    class Sub(type(m), Mixed):
        def forward(self, *args):
            return super().forward(*args) + self.shift()

    made = kind.again(Sub)
    note([type(made) is Sub, isinstance(made, type(m)), issubclass(Sub, type(m)), issubclass(type(m), Sub)])
    return made


@act
def subclass_by_type(m, note, kind):
    made = type("Sub", (Mixed, type(m)), {})
    note(made.__mro__[0].__name__)
    return kind.again(made)


@act
def deepcopied_forward(m, note, kind):
    forward = copy.deepcopy(m.forward)
    note(forward.__self__ is not m if inspect.ismethod(forward) else True)
    m.forward = m.forward


@act
def from_pretrained(m, note, kind):
    with tempfile.TemporaryDirectory() as folder:
        m.save_pretrained(folder)
        made = type(m).from_pretrained(folder)
        note([type(made) is m.__class__, isinstance(m._from_config(m.config), type(m))])
    return made


@act
def averaged(m, note, kind):
    made = torch.optim.swa_utils.AveragedModel(m)
    made.update_parameters(m)
    return made.module


@act
def quantized(m, note, kind):
    note(type(torch.ao.quantization.quantize_dynamic(m, {nn.Linear}, dtype=torch.qint8)).__name__)


# ---- changes of class ----


@act
def class_assigned(m, note, kind):
    class Other(m.__class__):
        def forward(self, *args):
            return super().forward(*args) * 2

        def added(self):
            return "added"

    m.__class__ = Other
    note([m.added(), type(m).__name__, isinstance(m, Other), m.__class__ is Other])


@act
def slot_hidden(m, note, kind):
    m.__class__ = type("Other", (m.__class__,), {"extra": property(lambda self: 5.0)})
    note(m.extra)


@act
def class_assigned_and_back(m, note, kind):
    before = m.__class__
    m.__class__ = type("Other", (Mixed, before), {})
    note(m.shift())
    m.__class__ = before
    note(hasattr(m, "shift"))


@act
def class_assigned_wrong(m, note, kind):
    m.__class__ = dict


@act
def class_assigned_with_slots(m, note, kind):
    m.__class__ = type("Other", (m.__class__,), {"__slots__": ("further",)})


@act
def no_class_assigned(m, note, kind):
    m.__class__ = 3


@act
def weight_norm(m, note, kind):
    nn.utils.parametrizations.weight_norm(m)


@act
def spectral_norm(m, note, kind):
    nn.utils.parametrizations.spectral_norm(m)


@act
def orthogonal(m, note, kind):
    nn.utils.parametrizations.orthogonal(m)


@act
def weight_norm_inside(m, note, kind):
    nn.utils.parametrizations.weight_norm(linears(m)[0])


@act
def old_weight_norm(m, note, kind):
    nn.utils.weight_norm(linears(m)[0])


@act
def parametrized_and_back(m, note, kind):
    class Twice(nn.Module):
        def forward(self, w):
            return w * 2

    nn.utils.parametrize.register_parametrization(m, "weight", Twice())
    note([nn.utils.parametrize.is_parametrized(m), m.weight])
    m.weight = m.weight.detach() + 1
    nn.utils.parametrize.remove_parametrizations(m, "weight")
    note([nn.utils.parametrize.is_parametrized(m), m.weight])


@act
def pruned(m, note, kind):
    nn.utils.prune.l1_unstructured(linears(m)[0], "weight", amount=3)


@act
def class_patched(m, note, kind):
    cls, old = type(m), m.__class__.forward
    cls.forward = lambda self, *args: old(self, *args) * 3
    try:
        with torch.no_grad():
            note(m.eval()(kind.x))
    finally:
        cls.forward = old
    note(m.__class__.forward is old)


@act
def class_attribute(m, note, kind):
    type(m).flag = 3
    note([m.flag, m.__class__.flag])
    del type(m).flag
    note(hasattr(m, "flag"))


# ---- changes of the instance ----


@act
def attributes(m, note, kind):
    m.plain = 3
    note([hasattr(m, "plain"), m.plain, "plain" in m.__dict__, "plain" in vars(m)])
    del m.plain
    note(hasattr(m, "plain"))
    m.private = 4
    note(hasattr(m, "_private"))
    m.missing  # noqa: B018


@act
def slots(m, note, kind):
    note([m.extra, hasattr(m, "unset")])
    m.extra = 7.0
    m.unset = 1
    del m.unset
    note([m.extra, hasattr(m, "unset"), type(m).extra.__name__])


@act
def dict_assigned(m, note, kind):
    m.__dict__ = copy.deepcopy(m.__dict__)
    m.added = 1
    note([m.added, sorted(vars(m))])


@act
def forward_replaced(m, note, kind):
    old = m.forward
    m.forward = lambda *args: old(*args) + 2


@act
def forward_bound_anew(m, note, kind):
    cls = m.__class__
    m.forward = types.MethodType(lambda self, *args: cls.forward(self, *args) - 2, m)


@act
def child_replaced(m, note, kind):
    for name, child in m.named_children():
        if isinstance(child, nn.Linear):
            setattr(m, name, nn.Linear(child.in_features, child.out_features))
            note(getattr(m, name) is m._modules[name])
            return


@act
def parameter_replaced(m, note, kind):
    child = linears(m)[0]
    child.weight = nn.Parameter(child.weight.detach() + 1)
    del child.bias
    child.register_parameter("bias", None)


@act
def buffer_added(m, note, kind):
    m.register_buffer("made", torch.ones(2))
    note([n for n, _ in m.named_buffers()])


@act
def appended(m, note, kind):
    m.append(nn.Sigmoid())
    m.insert(0, nn.Identity())
    del m[1]
    note([len(m), m.pop(0) is not None])


@act
def hooks(m, note, kind):
    def add(module, args, out):
        return out + 3 if isinstance(out, torch.Tensor) else out

    first = m.register_forward_hook(add)
    m.register_forward_hook(add, prepend=True)
    m.register_full_backward_hook(lambda module, into, out: None)
    first.remove()
    note(len(m._forward_hooks))


@act
def global_hook(m, note, kind):
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, a, o: seen.append(type(module).__name__))
    try:
        with torch.no_grad():
            m.eval()(kind.x)
    finally:
        handle.remove()
    note(seen)


@act
def state_dict_hooks(m, note, kind):
    m.register_state_dict_post_hook(lambda module, sd, prefix, meta: sd.update({prefix + "hooked": torch.ones(1)}))
    m.register_load_state_dict_pre_hook(lambda module, sd, prefix, *rest: sd.pop(prefix + "hooked", None) and None)
    m.load_state_dict(m.state_dict())


@act
def double_(m, note, kind):
    note(m.double() is m)
    m.float()


@act
def frozen(m, note, kind):
    linears(m)[0].requires_grad_(False)
    note(m.requires_grad_(True) is m)


@act
def modes(m, note, kind):
    note([m.eval() is m, m.training, m.train().training])
    m.eval()


def to_zeros(m):
    """Not as empty as to_empty leaves it: what no state_dict holds would be what lay in the memory."""
    m.to_empty(device="cpu")
    with torch.no_grad():
        for t in (*m.parameters(), *m.buffers()):
            t.zero_()


@act
def emptied(m, note, kind):
    state = copy.deepcopy(m.state_dict())
    to_zeros(m)
    m.load_state_dict(state)


@act
def to_meta_and_back(m, note, kind):
    state = copy.deepcopy(m.state_dict())
    to_zeros(m.to("meta"))
    m.load_state_dict(state)


@act
def shared(m, note, kind):
    note(m.share_memory() is m)


@act
def initialised(m, note, kind):
    def init(module):
        if type(module) == nn.Linear:  # noqa: E721  (what tutorials write)
            nn.init.constant_(module.weight, 0.5)
        if type(module) in {nn.BatchNorm1d: 1, kind.make().__class__: 2}:
            note("found")

    note(m.apply(init) is m)


# ---- state_dict ----


@act
def loaded(m, note, kind):
    note(str(m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()})))


@act
def loaded_by_assignment(m, note, kind):
    m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True)


@act
def loaded_wrong(m, note, kind):
    note(str(m.load_state_dict({"strange": torch.ones(1)}, strict=False)))
    m.load_state_dict({"strange": torch.ones(1)})


# ---- questions ----


@act
def questions(m, note, kind):
    note([type(m).__name__, type(m).__qualname__, type(m).__module__, type(m).__doc__, repr(type(m)), repr(m)])
    note([isinstance(m, kind.make().__class__), isinstance(m, nn.Module), issubclass(type(m), nn.Module)])
    note(
        [
            isinstance(kind.make(), type(m)),
            isinstance(3, type(m)),
            isinstance(3, m.__class__),
            issubclass(dict, type(m)),
        ]
    )
    note([sorted(vars(type(m))), sorted(typing.get_type_hints(type(m)))])
    note([str(inspect.signature(m)), callable(m), bool(m), weakref.ref(m)() is m, m in [m], m in {m}, m == m])
    note(sorted(set(dir(m)) - {"_orig_mod", "_flashover_callable", "_flashover_class"}))
    note([n for n, _ in m.named_modules()] + [n for n, _ in m.named_parameters()] + [n for n, _ in m.named_buffers()])
    note([str(inspect.signature(m.forward)), m.forward.__name__])


@act
def equality(m, note, kind):
    other = kind.make()
    note([m == other, other == m, hash(type(m)) == hash(type(other))])
    note([type(m) == type(other), type(other) == type(m)])  # noqa: E721
    note({type(other): 1}.get(type(m)))


@act
def virtual_subclass(m, note, kind):
    class Virtual:
        pass

    note(isinstance(Virtual(), type(m)))
    type(m).register(Virtual)
    note([isinstance(Virtual(), type(m)), isinstance(Virtual(), m.__class__), issubclass(dict, m.__class__)])


@act
def abc_caches(m, note, kind):
    cls = m.__class__
    sub = type("Sub", (cls,), {})
    note([isinstance(kind.again(sub), type(m)), isinstance(kind.again(sub), cls), issubclass(sub, cls)])
    note([isinstance(m, cls), isinstance(kind.make(), cls)])


# ---- other tracers and transforms ----


def tensor(out: Any) -> torch.Tensor:
    return out if isinstance(out, torch.Tensor) else out[0]


@act
def functional_call(m, note, kind):
    state = {k: v.detach() * 0.5 for k, v in m.named_parameters()}
    note(tensor(torch.func.functional_call(m.eval(), state, (kind.x,))))


@act
def func_grad(m, note, kind):
    m.eval()(kind.x)
    params = dict(m.named_parameters())
    note(torch.func.grad(lambda p: tensor(torch.func.functional_call(m, p, (kind.x,))).square().sum())(params))


@act
def vmap(m, note, kind):
    m.eval()
    note(torch.vmap(lambda x: tensor(m(x)), randomness="same")(torch.stack([kind.x, kind.x])))


@act
def compiled_forward(m, note, kind):
    with torch.no_grad():
        note([tensor(m.eval().forward(kind.x)), tensor(m.forward(kind.x))])


@act
def dunder_call(m, note, kind):
    with torch.no_grad():
        note([tensor(m.eval().__call__(kind.x)), tensor(type(m).__call__(m, kind.x))])


@act
def jit_trace(m, note, kind):
    m.eval()
    note(tensor(torch.jit.trace(m, kind.x, check_trace=False, strict=False)(kind.x)))


@act
def jit_script(m, note, kind):
    m.eval()
    note(tensor(torch.jit.script(m)(kind.x)))


@act
def fx_trace(m, note, kind):
    traced = torch.fx.symbolic_trace(m.eval())
    note([[(n.op, str(n.target)) for n in traced.graph.nodes], tensor(traced(kind.x))])


@act
def graph_recompiled(m, note, kind):
    m.recompile()
    with torch.no_grad():
        note([m.eval()(kind.x), m.forward(kind.x)])
    last = next(n for n in reversed(m.graph.nodes) if n.op == "call_module")
    last.replace_all_uses_with(last.args[0])
    m.graph.erase_node(last)
    m.recompile()
    note([m.code, m.delete_all_unused_submodules()])


@act
def make_fx(m, note, kind):
    m.eval()
    with torch.no_grad():
        traced = torch.fx.experimental.proxy_tensor.make_fx(lambda x: tensor(m(x)))(kind.x)
    note(len(traced.graph.nodes))


@act
def export_strict(m, note, kind):
    exported = torch.export.export(m.eval(), (kind.x,), strict=True)
    note([sorted(exported.state_dict), tensor(exported.module()(kind.x))])


@act
def export(m, note, kind):
    exported = torch.export.export(m.eval(), (kind.x,), strict=False)
    note([sorted(exported.state_dict), tensor(exported.module()(kind.x))])


@act
def dynamo(m, note, kind):
    torch._dynamo.reset()
    with torch.no_grad():
        note(tensor(torch.compile(m.eval(), backend="eager", fullgraph=True)(kind.x)))


@act
def dynamo_forward(m, note, kind):
    torch._dynamo.reset()
    m.eval()
    with torch.no_grad():
        note(tensor(torch.compile(lambda x: m.forward(x), backend="eager", fullgraph=True)(kind.x)))


SLOW = {"dynamo_forward", "export_strict", "export", "dynamo", "jit_trace", "jit_script", "make_fx", "quantized"}
