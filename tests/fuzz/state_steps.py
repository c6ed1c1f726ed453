"""What may happen to a model between two calls: the steps of fuzz_state. Each does the same to the compiled world and
to its eager twin, and returns what a program would see of it."""

from __future__ import annotations

import copy
import gc
import io
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import state_models
import torch
from torch import nn

Seen = list[Any]
MODES = (torch.enable_grad, torch.enable_grad, torch.no_grad, torch.inference_mode)
MOST_PENDING = 2


def write_in_place(m: nn.Module, s: float) -> None:
    with torch.no_grad():
        for p in m.parameters():
            p.mul_(s)


def write_data(m: nn.Module, s: float) -> None:
    for p in m.parameters():
        p.data.mul_(s)


def write_detached(m: nn.Module, s: float) -> None:
    for p in m.parameters():
        p.detach().add_(s - 1)


def write_first_row(m: nn.Module, s: float) -> None:
    for p in m.parameters():
        p.data[0] = s


def write_buffers(m: nn.Module, s: float) -> None:
    for b in m.buffers():
        if b.is_floating_point():
            b.data.add_(abs(s - 1))


def write_views(m: nn.Module, s: float) -> None:
    with torch.no_grad():
        for p in m.parameters():
            p.view(-1)[1:].mul_(s).add_(0.1)


def average_into(m: nn.Module, other: nn.Module) -> None:
    with torch.no_grad():
        for p, q in zip(m.parameters(), other.parameters(), strict=True):
            q.mul_(0.5).add_(p, alpha=0.5)


def average_into_data(m: nn.Module, other: nn.Module) -> None:
    for p, q in zip(m.parameters(), other.parameters(), strict=True):
        q.data.lerp_(p.data, 0.5)


def call_module(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return m(x)


def call_detached(m: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Also hands out parameters as aliases."""
    y = m(x)
    w = m.head.weight
    return y, w.data, w.detach(), w.detach().view(-1)[2:]


def train_step(m: nn.Module, x: torch.Tensor, rate: float) -> torch.Tensor:
    loss = loss_of(m(x))
    wanted = [p for p in m.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, wanted, allow_unused=True)
    with torch.no_grad():
        for p, g in zip(wanted, grads, strict=True):
            if g is not None:
                p.sub_(g.clamp(-1, 1), alpha=rate)
    return loss.detach()


def loss_of(y: torch.Tensor) -> torch.Tensor:
    return (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)).tanh().sum()


WRITERS: list[Callable[[nn.Module, float], None]] = [
    write_in_place, write_data, write_detached, write_first_row, write_buffers, write_views,
]  # fmt: skip


def uncompiled(f: Any, **_: Any) -> Any:
    return f


class World:
    """A model, what is called for it, and everything that a program may hold beside it."""

    def __init__(
        self, seed: int, dtype: torch.dtype, compile_fn: Callable[..., Any] | None, nudge: int | None = None
    ) -> None:
        r = random.Random(seed * 7 + 1)
        self.compile = compile_fn or uncompiled
        self.dtype = dtype
        self.model = state_models.Model(seed).to(dtype)
        self.eager = compile_fn is None
        # Inputs and weights differ from those of other worlds by 4 to 256 units in the last place.
        self.nudges = None if nudge is None else torch.Generator().manual_seed(nudge)
        self.nudge = 0.0 if nudge is None else 4.0 ** (1 + nudge % 4) * torch.finfo(dtype).eps
        for p in self.model.parameters():
            p.data = self.nudged(p.data)  # a write would be seen in the version
        self.whole = r.choice(["module", "module", "function", "part"])
        self.options = {"recompile_limit": 64} | ({"sub_plans": 2} if r.random() < 0.15 else {})
        self.optimizer_kind = r.randrange(7)
        self.average: nn.Module | None = None
        self.aliases: list[torch.Tensor] = []
        self.arrays: list[numpy.ndarray[Any, Any]] = []
        self.pending: list[torch.Tensor] = []
        self.functions: dict[Any, Any] = {}
        self.renew()

    def compiled(self, f: Callable[..., Any]) -> Callable[..., Any]:
        if f not in self.functions:
            self.functions[f] = self.compile(f, options=self.options)
        made: Callable[..., Any] = self.functions[f]
        return made

    def renew(self) -> None:
        """The model is another object: what depends on it is made again."""
        if self.whole == "module":
            self.call = self.compile(self.model, options=self.options)
        elif self.whole == "function":
            one = self.compiled(call_module)
            self.call = lambda x: one(self.model, x)
        else:
            head = self.model.head
            blocks = [self.compile(b, options=self.options) for b in self.model.blocks]
            self.call = lambda x: self.in_parts(blocks, head, x)
        self.optimizer = self.new_optimizer()

    def in_parts(self, blocks: list[nn.Module], head: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if self.model.image:
            x = self.model.squeeze(self.model.backbone(x).mean((2, 3)))
        for block in blocks:
            x = block(x)
        return self.model.head(x)

    def new_optimizer(self) -> torch.optim.Optimizer:
        parameters = list(self.model.parameters())
        match self.optimizer_kind:
            case 0:
                return torch.optim.SGD(parameters, 0.05)
            case 1:
                return torch.optim.SGD(parameters, 0.05, momentum=0.5, foreach=True)
            case 2:
                return torch.optim.SGD(parameters, 0.05, fused=True)
            case 3:
                return torch.optim.Adam(parameters, 0.02, eps=1e-1, fused=True)
            case 4:
                return torch.optim.AdamW(parameters, 0.02, eps=1e-1, foreach=True)
            case 5:
                return torch.optim.RMSprop(parameters, 0.01, eps=1e-1)
        return torch.optim.Adam(parameters, 0.02, eps=1e-1, foreach=False)

    def example(self, r: random.Random) -> torch.Tensor:
        return self.nudged(self.model.example(r, self.dtype))

    def nudged(self, x: torch.Tensor) -> torch.Tensor:
        if self.nudges is None:
            return x
        return x * (1 + self.nudge * (2 * torch.rand(x.shape, generator=self.nudges, dtype=x.dtype) - 1))

    def module(self, r: random.Random) -> nn.Module:
        return r.choice(list(self.model.modules()))

    def parameter(self, r: random.Random) -> nn.Parameter:
        return r.choice(list(self.model.parameters()))

    def tensor(self, r: random.Random) -> torch.Tensor:
        tensors: list[torch.Tensor] = [*self.model.parameters(), *self.model.buffers()]
        return r.choice([t for t in tensors if t.is_floating_point()])


# ---- calls ----
def forward(w: World, r: random.Random) -> Seen:
    x, mode = w.example(r), r.choice(MODES)
    with mode():
        return [w.call(x)]


def evaluate(w: World, r: random.Random) -> Seen:
    """As people do it: eval(), a call, train()."""
    x, mode = w.example(r), r.choice((torch.no_grad, torch.no_grad, torch.inference_mode))
    w.model.eval()
    with mode():
        y = w.call(x)
    w.model.train(r.random() < 0.7)
    return [y]


def forward_in_mode(w: World, r: random.Random) -> Seen:
    x = w.example(r)
    with torch.no_grad(), torch.enable_grad():
        return [w.call(x)]


def forward_backward(w: World, r: random.Random) -> Seen:
    x = w.example(r).requires_grad_(r.random() < 0.5)
    y = w.call(x)
    if y.requires_grad:
        loss_of(y).backward()
    if r.random() < 0.6:
        w.optimizer.step()
        w.optimizer.zero_grad(set_to_none=r.random() < 0.6)
    return [y, x.grad]


def train_several(w: World, r: random.Random) -> Seen:
    out = []
    for _ in range(2):
        y = w.call(w.example(r))
        w.optimizer.zero_grad()
        if y.requires_grad:
            loss_of(y).backward()
            w.optimizer.step()
        out.append(y)
    return out


@dataclass
class Saved:
    """What eager's backward reads: kept as it was, and refused when it was written since, unseen or not."""

    tensor: torch.Tensor
    version: int
    content: torch.Tensor | None = None

    def unpack(self) -> torch.Tensor:
        seen = self.tensor._version != self.version
        if seen or not (self.content is None or torch.equal(bits(self.tensor), bits(self.content))):
            raise RuntimeError("a saved tensor was modified by an inplace operation")
        return self.tensor


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(torch.uint8) if t.dim() else t.reshape(1).view(torch.uint8)


def call_as_judge(w: World, x: torch.Tensor) -> torch.Tensor:
    """Eager saves a parameter as the object that it is: after `p.data = t` its backward computes with memory that the
    forward never saw (a linear layer's is right: it saves the transposed weight). What fused optimizers and `p.data`
    wrote unseen gives some gradient, which depends on what is kept. Neither is a gradient to compare with."""
    kept: list[Saved] = []

    def pack(t: torch.Tensor) -> Saved:
        kept.append(Saved(t.detach(), t._version))
        return kept[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, Saved.unpack):
        y = w.call(x)
    # Statistics are saved by batch norms that do not read them, and move on in every call.
    statistics = {b.data_ptr() for b in w.model.buffers()}
    for saved in kept:
        if saved.tensor.data_ptr() not in statistics:
            saved.content = saved.tensor.clone()
    return y


def forward_for_later(w: World, r: random.Random) -> Seen:
    x = w.example(r)
    y = call_as_judge(w, x) if w.eager else w.call(x)
    if y.requires_grad and len(w.pending) < MOST_PENDING:
        w.pending.append(y)
    return [y]


def backward_of_earlier(w: World, r: random.Random) -> Seen:
    if not w.pending:
        return []
    try:
        loss_of(w.pending.pop(0)).backward()
    except RuntimeError:  # which gradients there are by then is a matter of the engine's order
        w.model.zero_grad()
        raise
    return []


def backward_again(w: World, r: random.Random) -> Seen:
    """The graph stays: another backward of it may come after other writes."""
    if not w.pending:
        return []
    try:
        loss_of(w.pending[0]).backward(retain_graph=True)
    except RuntimeError:
        w.model.zero_grad()
        w.pending.pop(0)
        raise
    return []


def accumulate(w: World, r: random.Random) -> Seen:
    """Two forwards, then the backwards of both, and one step."""
    out = [call_as_judge(w, x) if w.eager else w.call(x) for x in (w.example(r), w.example(r))]
    if r.random() < 0.3:
        w.optimizer.zero_grad()
    for y in reversed(out) if r.random() < 0.5 else out:
        if y.requires_grad:
            try:
                loss_of(y).backward()
            except RuntimeError:
                w.model.zero_grad()
                raise
    w.optimizer.step()
    return out


def gradient_of_input(w: World, r: random.Random) -> Seen:
    x = w.example(r).requires_grad_()
    y = w.call(x)
    return [y, *torch.autograd.grad(loss_of(y), [x], allow_unused=True)] if y.requires_grad else [y]


def step_in_backward(w: World, r: random.Random) -> Seen:
    """Parameters are written as soon as they have their gradients, in hooks."""

    def hook(p: torch.Tensor) -> None:
        assert p.grad is not None
        with torch.no_grad():
            p.sub_(p.grad.clamp(-1, 1), alpha=0.05)
        p.grad = None

    x, parameters = w.example(r), [p for p in w.model.parameters() if p.requires_grad]
    w.model.zero_grad()
    y = call_as_judge(w, x) if w.eager else w.call(x)
    handles = [p.register_post_accumulate_grad_hook(hook) for p in parameters if p.is_leaf]
    try:
        if y.requires_grad:
            loss_of(y).backward()
    finally:
        for handle in handles:
            handle.remove()
    return [y]


def call_function(w: World, r: random.Random) -> Seen:
    with r.choice(MODES)():
        return [w.compiled(call_module)(w.model, w.example(r))]


def call_for_aliases(w: World, r: random.Random) -> Seen:
    with r.choice((torch.no_grad, torch.enable_grad))():
        made = list(w.compiled(call_detached)(w.model, w.example(r)))
    if len(w.aliases) < 6:
        w.aliases += made[1:]
    return made


def step_in_one_function(w: World, r: random.Random) -> Seen:
    return [w.compiled(train_step)(w.model, w.example(r), 0.05)]


# ---- modes ----
def train(w: World, r: random.Random) -> Seen:
    w.model.train()
    return []


def evaluation(w: World, r: random.Random) -> Seen:
    w.model.eval()
    return []


def change_mode_of_part(w: World, r: random.Random) -> Seen:
    w.module(r).train(r.random() < 0.5)
    return []


def freeze(w: World, r: random.Random) -> Seen:
    target = w.module(r) if r.random() < 0.6 else w.model
    for p in target.parameters():
        p.requires_grad_(r.random() < 0.5)
    return []


def zero_grad(w: World, r: random.Random) -> Seen:
    w.model.zero_grad(set_to_none=r.random() < 0.5)
    return []


def change_settings(w: World, r: random.Random) -> Seen:
    m = w.module(r)
    if isinstance(m, nn.modules.batchnorm._NormBase):
        if r.random() < 0.3:
            m.reset_running_stats()
        else:
            m.momentum = r.choice([0.2, 0.7])
    elif isinstance(m, nn.Dropout):
        m.p = r.choice([0.2, 0.6])
    return []


# ---- writes ----
def write_by_function(w: World, r: random.Random) -> Seen:
    writer, scale, target = r.choice(WRITERS), r.choice([0.8, 1.25]), w.module(r)
    (w.compiled(writer) if r.random() < 0.7 else writer)(target, scale)
    return []


def write_parameter(w: World, r: random.Random) -> Seen:
    p, how = w.tensor(r), r.randrange(8)
    with torch.inference_mode() if how == 7 and not p.is_inference() else torch.no_grad():
        if how == 0:
            p.mul_(1.3)
        elif how == 1:
            p.copy_(torch.rand_like(p) + 0.2)
        elif how == 2 and p.dim() > 0:
            p[0] = 0.7
        elif how == 3:
            p.data.mul_(0.7)
        elif how == 4 and isinstance(p, nn.Parameter):
            p.data = torch.randn_like(p)
        elif how == 5:
            torch._foreach_mul_([p], 1.2)
        elif how == 6:
            p.data.view(-1)[0] = 1.1
        else:
            p.add_(0.2)
    return []


def write_through_numpy(w: World, r: random.Random) -> Seen:
    if w.arrays and r.random() < 0.5:
        w.arrays[0][...] *= 1.1
        return []
    p = w.tensor(r)
    array = r.choice([lambda: p.detach().numpy(), lambda: p.data.numpy(), lambda: numpy.asarray(p.detach())])()
    array[...] += 0.25
    if r.random() < 0.5 and len(w.arrays) < 3:
        w.arrays.append(array)
    return []


def write_through_dlpack(w: World, r: random.Random) -> Seen:
    t = torch.from_dlpack(w.tensor(r).detach())
    t.mul_(0.9)
    if r.random() < 0.3 and len(w.aliases) < 6:
        w.aliases.append(t)
    return []


def take_view(w: World, r: random.Random) -> Seen:
    p = w.tensor(r)
    with torch.no_grad():
        made = r.choice([p.detach, lambda: p.data, lambda: p.view(-1), lambda: p.data.view(-1)[1:]])()
    if len(w.aliases) < 6:
        w.aliases.append(made)
    return []


def write_view(w: World, r: random.Random) -> Seen:
    if not w.aliases:
        return []
    alias = r.choice(w.aliases)
    with torch.no_grad():
        alias.mul_(1.15)
    return []


def drop_aliases(w: World, r: random.Random) -> Seen:
    w.aliases.clear()
    w.arrays.clear()
    return []


def preserved_version(w: World, r: random.Random) -> Seen:
    p = w.parameter(r)
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(p):
        p.mul_(1.2)
    return []


def write_storage(w: World, r: random.Random) -> Seen:
    t, how = w.tensor(r), r.randrange(5)
    other = torch.rand_like(t) + 0.2
    if how == 0:
        t.untyped_storage().copy_(other.contiguous().untyped_storage())
    elif how == 1:
        with torch.no_grad():
            t.set_(other)
    elif how == 2:
        t.data.set_(other)
    elif how == 3:
        t.data.copy_(other)
    else:
        t.data = t.data.clone()
    return []


def exchange_with_average(w: World, r: random.Random) -> Seen:
    """As averages of weights are evaluated: the memory of two models is exchanged, and back."""
    if w.average is None or [p.shape for p in w.average.parameters()] != [p.shape for p in w.model.parameters()]:
        w.average = copy.deepcopy(w.model).requires_grad_(False).eval()
    pairs = list(zip(w.model.parameters(), w.average.parameters(), strict=True))

    def exchange() -> None:
        for p, q in pairs:
            p.data, q.data = q.data, p.data

    exchange()
    with torch.no_grad():
        seen = [w.call(w.example(r))]
    if r.random() < 0.7:
        exchange()
    return seen


def update_statistics(w: World, r: random.Random) -> Seen:
    torch.optim.swa_utils.update_bn([w.example(r) for _ in range(2)], w.model)
    return []


def compiled_step(w: World, r: random.Random) -> Seen:
    x = w.example(r)
    w.optimizer.zero_grad()
    y = w.call(x)
    if y.requires_grad:
        loss_of(y).backward()
        w.compiled(w.optimizer.step)()
    return [y]


# ---- other tensors ----
def owner_of(w: World, wanted: torch.Tensor) -> tuple[nn.Module, str] | None:
    for m in w.model.modules():
        for name, t in [*m._parameters.items(), *m._buffers.items()]:
            if t is wanted:
                return m, name
    return None


def replace_parameter(w: World, r: random.Random) -> Seen:
    p = w.parameter(r)
    owner = owner_of(w, p)
    if owner and not nn.utils.parametrize.is_parametrized(owner[0]):
        setattr(*owner, nn.Parameter(torch.randn_like(p), requires_grad=p.requires_grad))
        w.optimizer = w.new_optimizer()
    return []


def replace_buffer(w: World, r: random.Random) -> Seen:
    buffers = [b for b in w.model.buffers() if b.is_floating_point()]
    if buffers:
        b = r.choice(buffers)
        owner = owner_of(w, b)
        assert owner
        setattr(*owner, torch.rand_like(b) + 0.3)
    return []


def swap(w: World, r: random.Random) -> Seen:
    p = w.parameter(r)
    if any(name.endswith(("weight_orig", "weight_g")) for name, _ in w.model.named_parameters()):
        # Such layers keep a result of the last call, and what it leads to: in compiled code the backward of the whole.
        return []
    torch.utils.swap_tensors(p, nn.Parameter(torch.randn_like(p), requires_grad=p.requires_grad))
    w.optimizer = w.new_optimizer()
    return []


def initialize(w: World, r: random.Random) -> Seen:
    nn.init.uniform_(w.parameter(r), -0.9, 0.9)
    return []


def vector(w: World, r: random.Random) -> Seen:
    n = sum(p.numel() for p in w.model.parameters())
    nn.utils.vector_to_parameters(torch.rand(n, dtype=w.dtype) - 0.3, w.model.parameters())
    return []


def load(w: World, r: random.Random) -> Seen:
    state = {k: torch.rand_like(v) + 0.2 if v.is_floating_point() else v + 1 for k, v in w.model.state_dict().items()}
    w.model.load_state_dict(state, assign=r.random() < 0.4)
    w.optimizer = w.new_optimizer()
    return []


def save_and_load(w: World, r: random.Random) -> Seen:
    file = io.BytesIO()
    torch.save(w.model.state_dict(), file)
    if r.random() < 0.5:
        write_in_place(w.model, 1.4)
    file.seek(0)
    w.model.load_state_dict(torch.load(file), assign=r.random() < 0.3)
    w.optimizer = w.new_optimizer()
    return []


def to_and_back(w: World, r: random.Random) -> Seen:
    between = r.choice([torch.float64, torch.float32, torch.float16, torch.bfloat16])
    w.model.to(between)
    if r.random() < 0.5:
        write_in_place(w.model, 1.1)
    w.model.to(w.dtype)
    return []


def call_in_other_dtype(w: World, r: random.Random) -> Seen:
    other = torch.float64 if w.dtype == torch.float32 else torch.float32
    w.model.to(other)
    x = w.model.example(r, other)
    with torch.no_grad():
        y = w.call(x)
    w.model.to(w.dtype)
    return [y]


def deep_copy(w: World, r: random.Random) -> Seen:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = copy.deepcopy(w.model)
    w.model = made
    w.pending.clear()
    w.renew()
    return []


def average(w: World, r: random.Random) -> Seen:
    if w.average is None or [p.shape for p in w.average.parameters()] != [p.shape for p in w.model.parameters()]:
        w.average = copy.deepcopy(w.model).requires_grad_(False).eval()
    update = r.choice([average_into, average_into_data])
    (w.compiled(update) if r.random() < 0.6 else update)(w.model, w.average)
    with torch.no_grad():
        return [w.compiled(call_module)(w.average, w.example(r))]


def functional(w: World, r: random.Random) -> Seen:
    x = w.example(r)
    given = {k: (v * 1.2).detach() for k, v in w.model.named_parameters()}
    with torch.no_grad():
        return [torch.func.functional_call(w.model, given, (x,))]


def collect(w: World, r: random.Random) -> Seen:
    gc.collect()
    return []


STEPS: list[tuple[int, Callable[[World, random.Random], Seen]]] = [
    (10, forward), (14, evaluate), (2, forward_in_mode), (12, forward_backward), (4, train_several),
    (5, forward_for_later), (4, backward_of_earlier), (4, call_function), (3, call_for_aliases),
    (3, step_in_one_function), (2, backward_again), (3, accumulate), (2, gradient_of_input), (2, step_in_backward),
    (3, write_storage), (2, exchange_with_average), (1, update_statistics), (1, compiled_step),
    (4, train), (4, evaluation), (4, change_mode_of_part), (4, freeze), (2, zero_grad),
    (2, change_settings), (7, write_by_function), (6, write_parameter), (3, write_through_numpy),
    (2, write_through_dlpack), (3, take_view), (4, write_view), (1, drop_aliases), (2, preserved_version),
    (2, replace_parameter), (2, replace_buffer), (1, swap), (1, initialize), (1, vector), (2, load), (1, save_and_load),
    (1, to_and_back), (1, call_in_other_dtype), (1, deep_copy), (2, average), (1, functional), (1, collect),
]  # fmt: skip
