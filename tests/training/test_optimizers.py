"""Compiled optimizer steps: parameters and state as eager's, no compilation a step."""

from collections.abc import Callable

import pytest
import torch
from differentiating import compiled
from interpreters import python

import flashover

O = torch.optim

CASES = {
    "sgd": (O.SGD, {}),
    "sgd_momentum": (O.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "sgd_nesterov": (O.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "sgd_foreach": (O.SGD, {"momentum": 0.9, "foreach": True}),
    "adam": (O.Adam, {"weight_decay": 0.01}),
    "adam_amsgrad": (O.Adam, {"amsgrad": True, "maximize": True}),
    "adam_foreach": (O.Adam, {"foreach": True}),
    "adamw": (O.AdamW, {"betas": (0.8, 0.95)}),
    "adamw_foreach": (O.AdamW, {"foreach": True, "amsgrad": True}),
    "adam_tensor_lr": (O.Adam, {"lr": "tensor"}),
    "sgd_tensor_lr": (O.SGD, {"lr": "tensor"}),
    "adagrad": (O.Adagrad, {"lr_decay": 0.1}),
    "rmsprop": (O.RMSprop, {"momentum": 0.5, "centered": True}),
    "nadam": (O.NAdam, {}),
    "nadam_foreach": (O.NAdam, {"foreach": True, "decoupled_weight_decay": True, "weight_decay": 0.01}),
    "radam": (O.RAdam, {}),
    "adamax": (O.Adamax, {}),
    "adadelta": (O.Adadelta, {}),
    "rprop": (O.Rprop, {"etas": (0.4, 1.3)}),
    "asgd": (O.ASGD, {}),
    "adafactor": (O.Adafactor, {"weight_decay": 0.01}),
}


def make(cls, kw, seed=0, dtype=torch.float32):
    # (A boolean index into a 0-d parameter, as Rprop does, depends on data.)
    shapes = ((5, 7), (3,), () if cls is not O.Rprop else (1,), (4, 2, 3), (5, 7))
    g = torch.Generator().manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(s, generator=g, dtype=torch.float64).to(dtype)) for s in shapes]
    kw = dict(kw)
    if kw.get("lr") == "tensor":
        kw["lr"] = torch.tensor(0.05)
    kw.setdefault("lr", 0.05)
    opt = cls([{"params": params[:3]}, {"params": params[3:], "lr": kw["lr"]}], **kw)
    return params, opt


def set_grads(params, seed, skip=()):
    g = torch.Generator().manual_seed(seed)
    for i, p in enumerate(params):
        grad = torch.randn(p.shape, generator=g, dtype=torch.float64).to(p.dtype)
        p.grad = None if i in skip else grad


def same(params, opt, other_params, other_opt, tol=2e-6):
    for p, q in zip(params, other_params, strict=True):
        torch.testing.assert_close(p, q, rtol=tol, atol=tol)
    a, b = opt.state_dict()["state"], other_opt.state_dict()["state"]
    assert a.keys() == b.keys()
    for k in a:
        assert a[k].keys() == b[k].keys()
        for name, v in a[k].items():
            if torch.is_tensor(v):
                assert v.dtype == b[k][name].dtype and v.stride() == b[k][name].stride()
                torch.testing.assert_close(v, b[k][name], rtol=tol, atol=tol)
            else:
                assert v == b[k][name]


@pytest.mark.parametrize("name", CASES)
def test_steps_as_eager(name):
    cls, kw = CASES[name]
    params, opt = make(cls, kw)
    other, eager = make(cls, kw)
    flashover.reset()
    step = flashover.compile(opt.step)
    compiled_at = []
    for i in range(12):
        before = flashover.compile_stats()["frames"]
        for ps, o in ((params, opt), (other, eager)):
            set_grads(ps, i, skip=(1,))
            for group in o.param_groups:
                if torch.is_tensor(group["lr"]):
                    group["lr"].fill_(0.05 / (1 + i))
                else:
                    group["lr"] = 0.05 / (1 + i)
        step()
        eager.step()
        if flashover.compile_stats()["frames"] > before:
            compiled_at.append(i)
        same(params, opt, other, eager)
    # State is made, lr changes, and what else settles: no more of that later.
    assert compiled_at and max(compiled_at) <= 6 and len(compiled_at) <= 5, compiled_at


def test_a_break_free_step():
    params, opt = make(O.AdamW, {})
    step = flashover.compile(opt.step, fullgraph=True)
    other, eager = make(O.AdamW, {})
    for i in range(3):
        set_grads(params, i)
        set_grads(other, i)
        step()
        eager.step()
    same(params, opt, other, eager)


def test_training_loop_with_scheduler_and_zero_grad():
    def build():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        opt = O.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, opt, O.lr_scheduler.OneCycleLR(opt, max_lr=0.2, total_steps=12)

    def train(model, opt, x, y):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss.detach()

    flashover.reset()
    model, opt, scheduler = build()
    other, eager, other_scheduler = build()
    fast = flashover.compile(train)
    x, y = torch.randn(4, 6), torch.randn(4, 3)
    for i in range(10):
        loss, wanted = fast(model, opt, x, y), train(other, eager, x, y)
        torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
        assert all(p.grad is None for p in model.parameters())
        scheduler.step()
        other_scheduler.step()
        if i == 5:
            settled = flashover.compile_stats()["frames"]
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    assert flashover.compile_stats()["frames"] == settled


def test_gradient_that_comes_and_goes():
    params, opt = make(O.SGD, {"momentum": 0.9})
    other, eager = make(O.SGD, {"momentum": 0.9})
    step = flashover.compile(opt.step)
    for i, skip in enumerate([(), (0,), (), (0, 2), ()]):
        set_grads(params, i, skip)
        set_grads(other, i, skip)
        step()
        eager.step()
        same(params, opt, other, eager)


def test_sparse_gradients_stay_eager():
    def build():
        torch.manual_seed(0)
        emb = torch.nn.Embedding(10, 3, sparse=True)
        return emb, O.SGD(emb.parameters(), lr=0.1)

    emb, opt = build()
    other, eager = build()
    step = flashover.compile(opt.step)
    for _ in range(2):
        for m in (emb, other):
            m.weight.grad = None
            m(torch.tensor([1, 4])).sum().backward()
        step()
        eager.step()
    torch.testing.assert_close(emb.weight, other.weight)


def test_zero_grad_in_place_and_clip():
    def work(params, opt):
        torch.nn.utils.clip_grad_value_(params, 0.5)
        opt.step()
        opt.zero_grad(set_to_none=False)

    params, opt = make(O.Adam, {})
    other, eager = make(O.Adam, {})
    fast = flashover.compile(work)
    for i in range(3):
        set_grads(params, i)
        set_grads(other, i)
        fast(params, opt)
        work(other, eager)
        same(params, opt, other, eager)
        assert all((p.grad == 0).all() for p in params)


def test_random_hyperparameters_against_fp64():
    import random

    rng = random.Random(0)
    for seed in range(6):
        cls = rng.choice([O.SGD, O.Adam, O.AdamW, O.RMSprop, O.Adagrad])
        kw = {"lr": 10 ** rng.uniform(-4, -1), "weight_decay": rng.choice([0.0, 0.1])}
        if cls in (O.Adam, O.AdamW):
            kw |= {"betas": (rng.uniform(0.5, 0.95), rng.uniform(0.9, 0.999)), "amsgrad": rng.random() < 0.5}
        if cls is O.SGD:
            kw |= {"momentum": rng.choice([0.0, 0.9])}
        params, opt = make(cls, kw, seed)
        exact, reference = make(cls, kw, seed, torch.float64)
        other, eager = make(cls, kw, seed)
        step = flashover.compile(opt.step)
        for i in range(5):
            for ps in (params, exact, other):
                set_grads(ps, 100 * seed + i)
            step()
            reference.step()
            eager.step()
        for p, q, r in zip(params, exact, other, strict=True):
            error, own = (p - q).abs().max(), (r - q).abs().max()
            assert error <= 2 * own + 1e-6, (cls, kw, error, own)


X = torch.linspace(-2, 2, 2 * 8 * 16).reshape(2, 8, 16)


@pytest.mark.parametrize("kind", ["SGD", "Adagrad"])
def test_fused_optimizers_that_have_no_shape_function(kind: str) -> None:
    parameters = [[torch.nn.Parameter(X[0].clone())] for _ in range(2)]
    steps = [getattr(torch.optim, kind)(p, lr=0.1, fused=True) for p in parameters]
    flashover.reset()
    calls = [steps[0].step, flashover.compile(steps[1].step, fullgraph=True)]
    for i in range(3):
        for p, call in zip(parameters, calls, strict=True):
            p[0].grad = (X[1] * (i + 1)).clone()
            call()
    torch.testing.assert_close(parameters[0][0], parameters[1][0])


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("fused", [True, False])
def test_writes_of_a_compiled_step_are_counted_as_in_eager(kind: str, fused: bool) -> None:
    """Fused optimizers count none; what is computed from the parameters sees each."""
    seen = []
    for ours in (False, True):
        model = torch.nn.Linear(16, 3)
        with torch.no_grad():
            model.weight.copy_(X[0, :3])
        optimizer = getattr(torch.optim, kind)([model.weight], lr=0.1, fused=fused)
        step, forward = optimizer.step, model
        if ours:
            step, forward = flashover.compile(optimizer.step, fullgraph=True), flashover.compile(model)
        versions, values = [], []
        for i in range(3):
            kept = (model.weight * model.weight).sum()
            model.weight.grad = (X[1, :3] * (i + 1)).clone()
            step()
            with torch.no_grad():
                values.append(forward(X[0]) - model.bias)
            versions.append((model.weight._version, model.weight.grad._version))
            if fused:  # eager's backward reads the new weight
                values.append(torch.autograd.grad(kept, model.weight)[0])
        seen.append((versions, values))
    assert seen[0][0] == seen[1][0]
    torch.testing.assert_close(seen[0][1], seen[1][1])


def test_optimizers_after_torch_compile() -> None:
    """Its first use in a process disables _init_group and the fused steps: they were taken for the user's marks."""
    code = """
import torch, flashover
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
for kind, options in (("SGD", {}), ("Adam", {}), ("AdamW", {"fused": True}), ("RMSprop", {"foreach": False})):
    values = [torch.nn.Parameter(torch.ones(5)) for _ in range(2)]
    steps = [getattr(torch.optim, kind)([v], lr=0.1, **options).step for v in values]
    steps[1] = flashover.compile(steps[1], fullgraph=True)
    for i in range(3):
        for v, step in zip(values, steps):
            v.grad = torch.arange(5.0) + i
            step()
    torch.testing.assert_close(values[0], values[1])
results = []
for wrap in (lambda f: f, flashover.compile):
    value = torch.nn.Parameter(torch.ones(5))
    optimizer = torch.optim.LBFGS([value])
    def closure():
        optimizer.zero_grad()
        loss = ((value - 2) ** 2).sum()
        loss.backward()
        return loss
    step = wrap(optimizer.step)
    step(closure)
    results.append(value.detach())
torch.testing.assert_close(*results)
print("same")
"""
    done = python("-c", code)
    assert done.stdout.strip() == "same", done.stdout + done.stderr


def sgd_like(parameters: list[torch.Tensor], grads: list[torch.Tensor], state: list[torch.Tensor]) -> None:
    torch._foreach_mul_(state, 0.9)
    torch._foreach_add_(state, grads, alpha=0.1)
    torch._foreach_addcdiv_(
        parameters, state, torch._foreach_add(torch._foreach_sqrt(torch._foreach_mul(grads, grads)), 1e-3), -0.05
    )


def test_foreach_updates() -> None:
    def make() -> list[list[torch.Tensor]]:
        torch.manual_seed(1)
        sizes = [(3,), (4, 5), (2, 3, 4), ()]
        return [[torch.randn(s) for s in sizes] for _ in range(3)]

    ours, theirs = make(), make()
    fast = compiled(sgd_like)
    for _ in range(3):
        fast(*ours)
        sgd_like(*theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_optimizer_step(name: str) -> None:
    models = [torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [OPTIMIZERS[name](m.parameters()) for m in models]
    steps = [flashover.compile(optimizers[0].step), optimizers[1].step]
    x = torch.randn(5, 4)
    for round in range(4):
        for m, o, step in zip(models, optimizers, steps, strict=True):
            o.zero_grad()
            m(x).pow(2).sum().backward()
            if round == 2:
                o.param_groups[0]["lr"] *= 0.5
            step()
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(p, q)
