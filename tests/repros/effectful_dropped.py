"""Operators with an effect run once a call and in the program's order, used or not: one registered as ORDERED, one of
unknown purity, one that returns nothing, one without tensors; in the forward, in the backward and in checkpoints."""

import torch
from torch._library.effects import EffectType
from torch.utils.checkpoint import checkpoint

import flashover

LOG: list[object] = []


@torch.library.custom_op("repro_effects::ordered", mutates_args=())
def ordered(x: torch.Tensor, s: str) -> torch.Tensor:
    LOG.append(s)
    return x.clone()


@torch.library.custom_op("repro_effects::plain", mutates_args=())
def plain(x: torch.Tensor, s: str) -> torch.Tensor:
    LOG.append((s, float(x.sum())))
    return x * 2


@torch.library.custom_op("repro_effects::say", mutates_args=())
def say(x: torch.Tensor, s: str) -> None:
    LOG.append((s, float(x.sum())))


@torch.library.custom_op("repro_effects::tick", mutates_args=())
def tick(s: str) -> None:
    LOG.append(s)


@torch.library.custom_op("repro_effects::bump", mutates_args=("x",))
def bump(x: torch.Tensor) -> None:
    LOG.append(("bump", float(x.sum())))
    x.add_(1)


for op in (ordered, plain):
    op.register_fake(lambda x, s: torch.empty_like(x))
for op in (say, tick, bump):
    op.register_fake(lambda *args: None)
ordered.register_effect(EffectType.ORDERED)


def backward(ctx, grad):
    say(grad, "backward")
    return plain(grad, "backward's"), None


plain.register_autograd(backward)


def f(x):
    a = ordered(x, "e1")
    ordered(a, "e2")
    ordered(x, "e3")
    ordered(x, "e3")
    tick("t")
    plain(x, "p")
    say(a + 1, "s")
    y = x * 3
    bump(y)
    return x + y


def train(x):
    y = plain(x * 2, "one")
    plain(y, "unused")
    return (plain(y, "two") * x).sum()


def kept(x):
    return checkpoint(lambda t: plain(t.sin(), "in checkpoint").cos(), x, use_reentrant=False).sum()


def logged(program, x):
    LOG.clear()
    y = program(x)
    if y.requires_grad:
        y.backward()
        LOG.append(x.grad.tolist())
        x.grad = None
    return list(LOG), y.detach()


for program, grad in ((f, False), (train, True), (kept, True)):
    compiled = flashover.compile(program)
    for i in range(3):
        x = torch.linspace(0, 1 + i, 4, requires_grad=grad)
        (a, y), (b, z) = logged(program, x), logged(compiled, x)
        assert len(a) == len(b), (program.__name__, a, b)
        for p, q in zip(a, b, strict=True):
            assert p == q or torch.allclose(torch.tensor(p[-1]), torch.tensor(q[-1])), (p, q)
        assert torch.allclose(y, z)
before = flashover.compile_stats()["graphs"]
flashover.compile(train, fullgraph=True)(torch.ones(3, requires_grad=True)).backward()
assert flashover.compile_stats()["graphs"] > before
