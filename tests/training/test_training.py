"""Programs, modules and models that train, compiled: their gradients against eager's and an fp64 run as arbiter, their
losses against eager's."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import agree, loss_of, no_further_off
from differentiable_programs import MODULES, PROGRAMS
from differentiating import compiled, leaf
from fuzz_training import run_one as run_fuzzed
from small_models import MODELS
from trace_tools import tensors_of

import flashover

pytestmark = pytest.mark.timeout(300)


INEXACT = {"custom_function", "dropout", "gather_scatter"}  # not in fp64


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    agree(PROGRAMS[name], leaf(3, 4), leaf(3, 4), exact=name not in INEXACT)


def run_module(module: torch.nn.Module, x: torch.Tensor, call: Any) -> None:
    torch.manual_seed(5)
    loss_of(call(x)).backward()


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    module, x = MODULES[name]()
    eager, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    fast = compiled(module)
    for _ in range(3):
        run_module(module, x, fast)
        run_module(eager, x, eager)
        run_module(exact, x.double(), exact)
    for (n, p), q, r in zip(module.named_parameters(), eager.parameters(), exact.parameters(), strict=True):
        no_further_off(p.grad, q.grad, r.grad, n)
    for (n, b), c, d in zip(module.named_buffers(), eager.buffers(), exact.buffers(), strict=True):
        no_further_off(b, c, d, n)


def train(
    model: torch.nn.Module, call: Any, args: tuple[Any, ...], optimizer: Any, steps: int, autocast: bool = False
) -> list[float]:
    torch.manual_seed(7)
    o = optimizer(model.parameters())
    losses = []
    for _ in range(steps):
        o.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = tensors_of(call(*args))[0]
        loss = (out.float() - 0.1).pow(2).mean()
        loss.backward()
        o.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", ["resnet18", "vit_tiny", "bert", "gpt2"])
def test_model_trains(name: str, autocast: bool) -> None:
    if name == "vit_tiny":
        timm = pytest.importorskip("timm")
        model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2)
        args: tuple[Any, ...] = (torch.randn(2, 3, 32, 32),)
    else:
        model, args = MODELS[name]()
        if name == "resnet18":
            args = (torch.randn(2, 3, 64, 64),)
    model.train()
    other = copy.deepcopy(model)
    sgd = name in ("resnet18", "bert")
    make = (lambda p: torch.optim.SGD(p, 0.01, momentum=0.9)) if sgd else (lambda p: torch.optim.AdamW(p, 1e-3))
    before = flashover.compile_stats()["graphs"]
    losses = train(model, flashover.compile(model, options={"verify": True}), args, make, 4, autocast)
    assert flashover.compile_stats()["graphs"] > before
    expected = train(other, other, args, make, 4, autocast)
    for step, (got, want) in enumerate(zip(losses, expected, strict=True)):
        assert abs(got - want) <= (0.05 if autocast else 2e-3) * abs(want) + 1e-4, (
            f"step {step}: {losses} instead of {expected}"
        )


def test_frozen_parameters_stay_without_gradient_and_are_seen_when_written() -> None:
    m = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    m[0].requires_grad_(False)
    e = copy.deepcopy(m)
    fast = compiled(m)
    x = torch.randn(5, 4)
    for _ in range(2):
        loss_of(fast(x)).backward()
        loss_of(e(x)).backward()
        assert m[0].weight.grad is None
        torch.testing.assert_close(m[2].weight.grad, e[2].weight.grad)
        with torch.no_grad():
            m[0].weight.mul_(2)
            e[0].weight.mul_(2)


def test_shared_parameter_and_tied_weights() -> None:
    w = leaf(4, 4)
    agree(lambda x, w: (x @ w).relu() @ w.t(), leaf(3, 4), w)


def test_double_use_and_accumulation() -> None:
    m = torch.nn.Linear(4, 3)
    e = copy.deepcopy(m)
    fast = compiled(m)
    for call, module in ((fast, m), (e, e)):
        x = torch.ones(2, 4)
        (call(x).sum() + call(x * 2).pow(2).sum()).backward()
        call(x).sum().backward()
        assert module.weight.grad is not None
    torch.testing.assert_close(m.weight.grad, e.weight.grad)
    torch.testing.assert_close(m.bias.grad, e.bias.grad)


def test_input_with_history() -> None:
    w = leaf(3, 4)
    f = compiled(lambda x: x * x)
    f(w * 2).sum().backward()
    torch.testing.assert_close(w.grad, 8 * w.detach())


def test_no_grad_call_of_a_module_in_training() -> None:
    m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    fast = compiled(m)
    x = torch.randn(2, 4)
    assert fast(x).requires_grad
    with torch.no_grad():
        y = fast(x)
    assert not y.requires_grad
    torch.testing.assert_close(y, m(x).detach())


def test_grad_scaler() -> None:
    m = torch.nn.Linear(4, 4)
    e = copy.deepcopy(m)
    fast = compiled(m)
    x = torch.randn(2, 4)
    for module, call in ((m, fast), (e, e)):
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        o = torch.optim.SGD(module.parameters(), 0.1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = call(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(o)
        scaler.update()
    torch.testing.assert_close(m.weight, e.weight, rtol=1e-2, atol=1e-3)


def test_memory_budget_recomputes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin().exp().sin()

    agree(f, leaf(50, 50), memory_budget=0)


def test_explain_names_both_halves() -> None:
    report = flashover.explain(lambda x: (x @ x).exp().sin())(leaf(8, 8))
    graph = report.graphs[0]
    assert graph["training"] and graph["saved_bytes"] == 8 * 8 * 4 and 0 < graph["backward_kernels"] < graph["kernels"]
    assert {"forward", "backward", "plan_forward", "plan_backward"} <= set(graph["texts"])
    assert "256 bytes kept for the backward" in report.text()


def test_cached_training_plan_is_used(tmp_path: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).gelu() if hasattr(x, "gelu") else F.gelu(x @ x)

    for hits in (0, 1):
        before = flashover.compile_stats()["cache_hits"]
        fast = flashover.compile(f, fullgraph=True, options={"cache_dir": str(tmp_path)})
        x = torch.full((4, 4), 0.25, requires_grad=True)
        fast(x).sum().backward()
        e = x.detach().clone().requires_grad_()
        f(e).sum().backward()
        torch.testing.assert_close(x.grad, e.grad)
        assert flashover.compile_stats()["cache_hits"] - before == hits


@pytest.mark.parametrize("seeds", [range(i, i + 10) for i in range(0, 100, 10)], ids=str)
def test_fuzzed_gradients(seeds: range) -> None:
    """Random programs and networks, differentiated; `./x fuzz-train 600` runs more."""
    for seed in seeds:
        problem, source = run_fuzzed(seed, flashover.compile)
        assert not problem, f"seed {seed}: {problem}\n{source}"


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_networks_train(kind: Any) -> None:
    m = kind(6, 5, num_layers=2, bidirectional=True, dropout=0.3)
    e = copy.deepcopy(m)
    fast = compiled(m)
    for _ in range(2):
        for call, module in ((fast, m), (e, e)):
            torch.manual_seed(4)
            x = torch.linspace(-1, 1, 36).view(3, 2, 6)
            loss_of(call(x)).backward()
            assert module.weight_ih_l0.grad is not None
    for (n, p), q in zip(m.named_parameters(), e.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=lambda text, n=n: f"{n}: {text}")


def test_example_reaches_the_same_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "examples"))
    import train_digits

    before = flashover.compile_stats()["graphs"]
    accuracy, losses = train_digits.train(compiled=True, epochs=3)
    assert flashover.compile_stats()["graphs"] > before
    eager_accuracy, eager_losses = train_digits.train(compiled=False, epochs=3)
    assert accuracy > 0.9 and abs(accuracy - eager_accuracy) < 0.02
    for got, want in zip(losses, eager_losses, strict=True):
        assert abs(got - want) < 0.05 * want + 1e-2, (losses, eager_losses)


def test_trains_across_a_graph_break() -> None:
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x).relu()
            if y.sum().item() > 1e9:  # data-dependent: two graphs
                y = y * 2
            return self.b(y)

    m = Broken()
    e = copy.deepcopy(m)
    fast = flashover.compile(m, options={"verify": True})
    x = torch.randn(3, 4)
    for _ in range(2):
        loss_of(fast(x)).backward()
        loss_of(e(x)).backward()
    for (n, p), q in zip(m.named_parameters(), e.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q[1].grad, msg=lambda m, n=n: f"{n}: {m}")


def test_break_inside_no_grad_keeps_the_gradient_of_what_came_before() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        with torch.no_grad():
            z = y * 2
            if z.sum().item() > 1e9:
                z = z + 1
            z = z.sin()
        return y * 3, z

    agree(f, leaf(3), fullgraph=False)


def test_leaf_made_in_the_program() -> None:
    def penalty(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        inside = x.detach().requires_grad_()
        y = (inside @ w).tanh().sum(1)
        (g,) = torch.autograd.grad(y.sum(), inside, create_graph=True)
        return y.mean() + (g.norm(dim=1) - 1).square().mean() + (x * inside.view(-1).sum().detach()).sum()

    agree(penalty, leaf(3, 4), leaf(4, 4))
    # Its gradient ends in it: nothing of it reaches where its content is from.
    agree(lambda x, w: (x.detach().requires_grad_().view(-1) * 2, x * w), leaf(3), leaf(3))
    fast = compiled(lambda x: (x * 2).detach().requires_grad_(), fullgraph=False)
    y = fast(torch.ones(3))
    y.square().sum().backward()
    assert torch.equal(y.grad, torch.full((3,), 4.0))


def test_products_of_a_loop_are_summed_in_one() -> None:
    """The gradient of a weight that is used at every step; of one result only, the other may be infinite."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x
        for _ in range(4):
            h = (h @ w).tanh()
        return h, ((x * 1e38 * 1e38) @ w).exp()

    text = flashover.explain(f)(leaf(2, 64), leaf(64, 64)).graphs[0]["texts"]["plan_backward"]
    assert text.count("call aten.mm.default") < 3 + 5  # those of the states, and one for the weight
    fast = compiled(f)
    x, w = leaf(2, 64), (torch.randn(64, 64) * 0.1).requires_grad_()
    h, _ = fast(x, w)
    h.square().sum().backward()
    want = torch.autograd.grad(f(x.double(), wide := w.detach().double().requires_grad_())[0].square().sum(), wide)[0]
    torch.testing.assert_close(w.grad, want.float(), rtol=1e-4, atol=1e-5)


def test_large_temporaries_do_not_outlive_their_use() -> None:
    """They are no part of the arena, which would lie in memory beside what is kept and beside the gradients."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).tanh().softmax(-1).cumsum(0) @ w).sigmoid().softmax(0)

    explained = flashover.explain(f)(leaf(512, 256), leaf(256, 256))
    for half in ("forward", "backward"):
        text = explained.graphs[0]["texts"][f"plan_{half}"]
        assert "aten.empty_strided" in text and "release" in text
        assert "= arena" not in text
    x, w = leaf(512, 256), leaf(256, 256)
    agree(f, x, w, exact=False)


def test_gradients_accumulate_in_eager_s_order() -> None:
    """Hooks behind them see it."""

    def order(model: torch.nn.Module, call: Any) -> list[str]:
        seen: list[str] = []
        handles = [
            p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(name))
            for name, p in model.named_parameters()
        ]
        call(torch.randn(2, 3, 8)).sum().backward()
        for h in handles:
            h.remove()
        return seen

    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
    model = torch.nn.Sequential(layer, torch.nn.Linear(8, 8, bias=False), layer, torch.nn.LayerNorm(8))
    assert order(model, compiled(model)) == order(model, model)


def test_twice_differentiated_parts_are_not_compiled() -> None:
    """The inner gradient cannot be traced: the graph must not end before it, since nothing compiled is differentiated
    twice."""
    m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())

    def f(x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        (g,) = torch.autograd.grad((x**4).sum() + x.prod(), x, create_graph=True)
        return [g, *torch.autograd.grad(g, x, v, create_graph=True)]

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        m(x).square().mean().backward(create_graph=True)
        grads = [p.grad.clone() for p in m.parameters() if p.grad is not None]
        m.zero_grad()
        return list(torch.autograd.grad(sum(g.square().sum() for g in grads), list(m.parameters())))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eager's, of backward(create_graph=True)
        for program, args in ((f, (leaf(4), torch.ones(4))), (step, (torch.randn(5, 3),))):
            fast = flashover.compile(program)
            for _ in range(2):
                torch.testing.assert_close(fast(*args), program(*args))
