"""Training through the whole compiler: forward and backward compiled, against eager and an fp64 run as arbiter."""

from __future__ import annotations

import copy
import functools
import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import agree, loss_of, no_further_off
from differentiable_programs import MODULES, PROGRAMS
from fuzz_training import run_one as run_fuzzed
from small_models import MODELS
from torch.utils.checkpoint import checkpoint
from trace_tools import tensors_of

import flashover

pytestmark = pytest.mark.timeout(300)


def compiled(f: Any, fullgraph: bool = True, **options: Any) -> Any:
    return flashover.compile(f, fullgraph=fullgraph, options={"verify": True, **options})


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes).requires_grad_()


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


# ---- what autograd promises


def test_unused_parameters_and_inputs_have_no_gradient() -> None:
    agree(lambda x, y: (x * 2, y.detach() * 3), leaf(3), leaf(3))


def test_partial_backward_leaves_the_rest_undefined() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp(), (y * x.detach()).sin()

    x, y = leaf(3), leaf(3)
    a, _ = compiled(f)(x, y)
    a.sum().backward()
    assert y.grad is None
    torch.testing.assert_close(x.grad, x.exp().detach())


def losses_of_two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x.log() * 3).exp(), x.sin() * w


@pytest.mark.parametrize("backend", ["flashover", "eager"])
def test_unused_results_add_nothing(backend: str) -> None:
    """The gradient of an unused result is absent, not zero: zero times infinity would be NaN."""
    fast = flashover.compile(losses_of_two, fullgraph=True, backend=backend, options={"verify": True})
    for _ in range(2):
        x, w = torch.zeros(4, requires_grad=True), torch.ones(4, requires_grad=True)
        fast(x, w)[1].sum().backward()
        assert torch.equal(x.grad, torch.ones(4)) and torch.equal(w.grad, torch.zeros(4))
        x, w = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
        fast(x, w)[0].sum().backward()
        assert w.grad is None
        torch.testing.assert_close(x.grad, torch.full((4,), 3.0))


def test_backward_of_results_one_after_the_other() -> None:
    """As in eager, results that share no saved tensor have backwards of their own, without retain_graph."""
    f = compiled(losses_of_two)
    x, w = leaf(4).detach().abs().requires_grad_(), leaf(4)
    a, b = f(x, w)
    a.sum().backward()
    b.sum().backward()
    gx, gw = torch.autograd.grad(sum(t.sum() for t in losses_of_two(x, w)), (x, w))
    torch.testing.assert_close(x.grad, gx)
    torch.testing.assert_close(w.grad, gw)
    with pytest.raises(RuntimeError, match="second time"):
        a.sum().backward()


def test_partial_backward_is_in_the_cache(tmp_path: Any) -> None:
    for _ in range(2):
        fast = flashover.compile(losses_of_two, fullgraph=True, options={"cache_dir": str(tmp_path)})
        x, w = torch.zeros(4, requires_grad=True), torch.ones(4, requires_grad=True)
        fast(x, w)[1].sum().backward()
        assert torch.equal(x.grad, torch.ones(4))
        flashover.reset()


def test_forward_mode_tangents_pass_by() -> None:
    f = lambda x: (x * 2).sin()  # noqa: E731
    fast = flashover.compile(f)
    x = torch.randn(3)
    fast(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones(3))
        with pytest.warns(flashover.exc.EagerWarning, match="forward-mode"):
            got = torch.autograd.forward_ad.unpack_dual(fast(dual)).tangent
        torch.testing.assert_close(got, torch.autograd.forward_ad.unpack_dual(f(dual)).tangent)


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


def test_results_that_alias() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x * y
        return z, z[1:], z.t(), x[0], x.view(-1).detach(), z.detach()

    x, y = leaf(3, 4), leaf(3, 4)
    agree(f, x, y)
    z, part, turned, row, flat, bare = compiled(f)(x, y)
    assert part.data_ptr() == z[1:].data_ptr() and turned.data_ptr() == z.data_ptr() == bare.data_ptr()
    assert row.data_ptr() == x.data_ptr() and flat.data_ptr() == x.data_ptr() and not flat.requires_grad
    # A result is written in place by the caller: autograd knows that they are views of each other.
    part.mul_(3)
    z.sum().backward()
    expected = y.detach().clone()
    expected[1:] *= 3
    torch.testing.assert_close(x.grad, expected)


PARTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "chunks": lambda x: (x * 2).chunk(2),
    "rows": lambda x: (x * 2).unbind(0),
    "overlapping": lambda x: (lambda y: (y[:2], y[1:]))(x * 2),
    "some_turned": lambda x: (lambda y: (y[0].view(2, 2).t(), y[1], y[2].detach()))(x * 2),
    "of_detached": lambda x: (lambda y: (y.detach()[1:], y[1:]))(x * 2),
    "integers_too": lambda x: (x * 2, *x.long().chunk(2)),
    "of_input": lambda x: x.split(2),
    "of_detached_input": lambda x: (x.detach(), x.detach()[1:], x * 2),
}


@pytest.mark.parametrize("name", PARTS)
def test_results_that_are_parts_of_one_memory(name: str) -> None:
    f = PARTS[name]
    agree(f, leaf(3, 4))
    x = leaf(3, 4)
    got, eager = compiled(f)(x), f(x)
    for i in range(len(got)):
        for j in range(len(got)):
            assert got[i].data_ptr() - got[j].data_ptr() == eager[i].data_ptr() - eager[j].data_ptr() or (
                got[i].untyped_storage().data_ptr() != got[j].untyped_storage().data_ptr()
            ) == (eager[i].untyped_storage().data_ptr() != eager[j].untyped_storage().data_ptr())


def test_only_detached_results() -> None:
    """No gradient is computed, and none is left."""
    x = leaf(4)
    for t in compiled(lambda x: (x.detach(), x.detach()[1:]))(x):
        assert not t.requires_grad and t.data_ptr() in (x.data_ptr(), x.data_ptr() + 4)


WRITERS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "whole": lambda x, w: x.mul_(w).sin(),
    "nothing_returned": lambda x, w: x.mul_(w).sin_() is None,
    "row": lambda x, w: x[0].mul_(w[0]).sum().detach(),
    "filled": lambda x, w: x.zero_().add(w),
    "returned_itself": lambda x, w: x.mul_(w[0]),
    "view_from_before": lambda x, w: (lambda v: (x.mul_(w), v * 2, v)[1:])(x[0]),
    "view_from_after": lambda x, w: x.mul_(w).view(-1),
    "read_before": lambda x, w: (lambda y: (x.add_(w), y))(x * 2),
    "twice": lambda x, w: (x.add_(w), x.mul_(2))[1].exp(),
    "without_grad_too": lambda x, w: (x.detach().add_(1), x.mul_(w))[1].sum(),
}


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("name", WRITERS)
def test_input_written_under_autograd(name: str, history: bool) -> None:
    """The caller's tensor gets a history, as in eager; one that had none requires grad afterwards."""
    f = WRITERS[name]
    fast = compiled(f)
    base, w = torch.rand(3, 4) + 0.5, torch.rand(3, 4)
    results = []
    for call in (fast, fast, f):
        torch.manual_seed(0)
        x, v = base.clone().requires_grad_(history), w.clone().requires_grad_()
        y = x * 2
        view, version = y[1:], y._version
        out = call(y, v)
        assert y._version > version
        total = loss_of([y.exp(), view.sin(), *tensors_of(out)])
        grads = torch.autograd.grad(total, [t for t in (x, v) if t.requires_grad], allow_unused=True)
        results.append([y, *tensors_of(out), total, *[torch.zeros(()) if g is None else g for g in grads]])
    for got in results[:2]:
        for g, e in zip(got, results[2], strict=True):
            assert g.requires_grad == e.requires_grad and g.stride() == e.stride()
            torch.testing.assert_close(g, e)


def test_buffer_that_comes_to_require_grad() -> None:
    def f(b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        b.add_(w * 2)
        return w.sin()

    for call in (compiled(f), f):
        b, w = torch.zeros(4), leaf(4)
        call(b, w)
        assert b.requires_grad and not b.is_leaf
        b.sum().backward()
        assert torch.equal(w.grad, torch.full((4,), 2.0))


def test_integer_and_non_differentiable_results() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.exp(), x.argmax(1), x > 0, x.detach().sum(), x.max(1).indices

    agree(f, leaf(3, 4))


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


def test_retain_graph_and_second_backward() -> None:
    x = leaf(3)
    y = compiled(lambda x: x.exp().sin())(x)
    y.sum().backward(retain_graph=True)
    first = x.grad.clone()
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_saved_result_written_in_place() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    x = leaf(3)
    y = compiled(f)(x)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    # Eager does not save the result of a sum of inputs: writing it is allowed.
    x = leaf(3)
    y = compiled(lambda x: (x.sin() + x.cos()) * 2)(x)
    y.add_(1)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * (x.cos() - x.sin()).detach())


def test_saved_input_written_in_place() -> None:
    x, y = leaf(3), torch.randn(3)
    z = compiled(lambda x, y: x * y)(x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@pytest.mark.parametrize("backend", ["flashover", "eager"])
@pytest.mark.parametrize(
    "new", [torch.zeros_like, torch.t, torch.Tensor.half, lambda t: t.new_empty(0), lambda t: t.view(-1)[:4]]
)
def test_saved_parameter_that_gets_other_memory(backend: str, new: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """`p.data = t` moves no version: the backward goes on with what the forward saw, as eager's linear does."""
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.nn.Parameter(torch.randn(4, 4))
    y = flashover.compile(lambda x, w: F.linear(x, w).sin() * w.sum(), backend=backend)(x, w)
    exact = torch.autograd.grad((F.linear(x, w).sin() * w.sum()).sum(), [x, w])
    w.data = new(w.data)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x, retain_graph=True)[0], exact[0])
    if new is torch.zeros_like:  # the engine takes no gradient of another shape or type
        torch.testing.assert_close(torch.autograd.grad(y.sum(), w)[0], exact[1])


def test_input_that_eager_does_not_save_may_be_written() -> None:
    x, y = leaf(3), torch.randn(3)
    f = lambda x, y: (x + y).sin()  # noqa: E731
    z = compiled(f)(x, y)
    expected = (x + y).cos().detach()
    y.zero_()
    z.sum().backward()
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("backend", ["flashover", "eager"])
@pytest.mark.parametrize("last", [torch.nn.Tanh(), torch.nn.Identity()])
def test_statistics_between_a_forward_and_its_backward(backend: str, last: torch.nn.Module) -> None:
    """A norm's formula reads the statistics as they are then, as eager's; what follows from the old ones was kept."""
    torch.manual_seed(0)
    norms = [torch.nn.BatchNorm1d(4, momentum=0.9) for _ in range(2)]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), norms[0], last, norms[1], torch.nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    fast = flashover.compile(model, backend=backend, fullgraph=True)
    x, other = torch.randn(8, 4), torch.randn(8, 4) * 3 + 2
    for m, call in ((twin, twin), (model, fast)):
        m.eval()
        first = call(x).square().sum()
        m.train()
        call(other)
        first.backward()
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=lambda m, name=name: f"{name}: {m}")


def test_mutated_buffers() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("seen", torch.zeros(3))
            self.register_buffer("count", torch.zeros((), dtype=torch.long))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.w * (1 + self.seen)
            self.seen.add_(x.detach().sum(0))
            self.count += 1
            return y

    m = Counter()
    e = copy.deepcopy(m)
    fast = compiled(m)
    for _ in range(3):
        x = torch.randn(2, 3)
        loss_of(fast(x)).backward()
        loss_of(e(x)).backward()
    torch.testing.assert_close(m.seen, e.seen)
    assert m.count.item() == e.count.item() == 3
    torch.testing.assert_close(m.w.grad, e.w.grad)


def test_input_with_history() -> None:
    w = leaf(3, 4)
    f = compiled(lambda x: x * x)
    f(w * 2).sum().backward()
    torch.testing.assert_close(w.grad, 8 * w.detach())


def test_dropout_is_reproducible_and_masks_the_gradient() -> None:
    f = compiled(lambda x: F.dropout(x, 0.5, True))
    x = torch.ones(64, requires_grad=True)
    torch.manual_seed(11)
    y = f(x)
    y.sum().backward()
    torch.manual_seed(11)
    expected = F.dropout(torch.ones(64), 0.5, True)
    assert torch.equal(y, expected) and torch.equal(x.grad, expected)


def test_hooks_outside() -> None:
    seen: list[torch.Tensor] = []
    m = torch.nn.Linear(3, 2)
    m.weight.register_hook(lambda g: g * 2)
    m.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    y = compiled(m)(torch.ones(1, 3))
    y.register_hook(lambda g: g * 5)
    y.sum().backward()
    assert torch.equal(m.weight.grad, torch.full((2, 3), 10.0)) and torch.equal(seen[0], torch.full((2,), 5.0))


def test_saved_tensor_hooks() -> None:
    packed: list[torch.Size] = []
    x = leaf(3)

    def pack(t: torch.Tensor) -> torch.Tensor:
        packed.append(t.shape)
        return t.double()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.float()):
        y = compiled(lambda x: x.exp().sin())(x)
    y.sum().backward()
    assert packed
    torch.testing.assert_close(x.grad, (x.exp().cos() * x.exp()).detach())


def test_create_graph_is_refused_clearly() -> None:
    x = leaf(3)
    y = compiled(lambda x: x.exp().sin())(x)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_saved_tensors_die_with_the_result() -> None:
    class Packed:
        def __init__(self, t: torch.Tensor) -> None:
            self.t = t

    packed: list[weakref.ref[Packed]] = []

    def pack(t: torch.Tensor) -> Packed:
        p = Packed(t)
        packed.append(weakref.ref(p))
        return p

    f = compiled(lambda x: (x @ x).sin() @ x)
    for backward in (False, True):
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda p: p.t):
            y = f(leaf(8, 8))
        assert packed and all(p() is not None for p in packed)
        if backward:
            y.sum().backward()
        else:
            del y
        gc.collect()
        assert all(p() is None for p in packed)


def test_backward_in_another_thread() -> None:
    f = compiled(lambda x: (x @ x).sin())
    xs = [leaf(8, 8) for _ in range(4)]
    ys = [f(x) for x in xs]
    threads = [threading.Thread(target=lambda y=y: y.sum().backward()) for y in ys]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for x in xs:
        e = x.detach().clone().requires_grad_()
        (e @ e).sin().sum().backward()
        torch.testing.assert_close(x.grad, e.grad)


def test_grads_do_not_share_memory() -> None:
    a, b = leaf(3), leaf(3)
    compiled(lambda a, b: (a + b) * 1)(a, b).sum().backward()
    assert a.grad.data_ptr() != b.grad.data_ptr()
    a, b = leaf(3), leaf(3)
    compiled(lambda a, b: a + b)(a, b).sum().backward()
    assert a.grad.data_ptr() != b.grad.data_ptr()


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
    assert "256 bytes kept for the backward" in str(report)


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


def test_nan_in_elu() -> None:
    agree(lambda x: F.elu(x).sign() * F.celu(x), torch.tensor([float("nan"), 1.0, -1.0] * 9).requires_grad_())


@pytest.mark.parametrize("mask", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("last", [False, True])
def test_group_norm(last: bool, mask: tuple[bool, bool]) -> None:
    x = torch.randn(2, 6, 3, 5)
    x = (x.to(memory_format=torch.channels_last) if last else x).requires_grad_()
    w, b = (torch.randn(6).requires_grad_(m) for m in mask)
    agree(lambda x, w, b: F.group_norm(x * 2, 3, w, b), x, w, b)
    agree(lambda x: F.group_norm(x * 2, 2), x)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
def test_embedding_bag(mode: str, last: bool) -> None:
    i, o = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2, 4, 6] if last else [0, 2, 4])

    def f(w: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(i, w, o, mode=mode, include_last_offset=last) * 2

    before = flashover.compile_stats()["graphs"]
    agree(f, leaf(8, 5))
    assert flashover.compile_stats()["graphs"] > before
    with torch.no_grad():
        w = torch.randn(8, 5)
        torch.testing.assert_close(compiled(f)(w), f(w))


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


def test_dropout_of_a_permuted_tensor_draws_as_eager_does() -> None:
    m = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    x = torch.randn(2, 5, 8)
    torch.manual_seed(1)
    got = compiled(m)(x)
    torch.manual_seed(1)
    torch.testing.assert_close(got, m(x))


def test_wrong_shape_functions_in_the_backward() -> None:
    wrong = True

    def narrow(x: torch.Tensor) -> torch.Tensor:
        return (x * 2)[:2].clone() if wrong else x * 2

    def wide(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).double()

    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for name, f in {"narrow": narrow, "wide": wide, "to_narrow": twice, "to_wide": twice}.items():
        torch.library.custom_op(f"flashover_test::{name}", f, mutates_args=(), schema="(Tensor x) -> Tensor")
        torch.library.register_fake(f"flashover_test::{name}", torch.empty_like)
    ops = torch.ops.flashover_test
    for name in ("narrow", "wide"):
        torch.library.register_autograd(f"flashover_test::to_{name}", lambda ctx, g, n=name: getattr(ops, n)(g))
    x = leaf(4)
    compiled(lambda x: ops.to_wide(x.sin()))(x).sum().backward()  # another dtype is converted, as autograd does
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    x = leaf(4)
    fast = compiled(lambda x: ops.to_narrow(x.sin()), fullgraph=False)
    with pytest.raises(RuntimeError, match=r"narrow.default is f32\[2\], not f32\[4\].*register_fake"):
        fast(x).sum().backward()
    wrong = False
    with pytest.warns(RuntimeWarning, match="run eager"):
        fast(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


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


# ---- checkpoints, hooks, leaves made in the program


class Block(torch.nn.Module):
    def __init__(self, norm: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.wide, self.narrow, self.norm = (
            torch.nn.Linear(16, 64),
            torch.nn.Linear(64, 16),
            norm or torch.nn.LayerNorm(16),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.norm(x)))), 0.2)


class Stack(torch.nn.Module):
    def __init__(self, blocks: list[torch.nn.Module], reentrant: bool | None) -> None:
        super().__init__()
        self.blocks, self.reentrant = torch.nn.ModuleList(blocks), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x.square().mean()


def step(call: Any, model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(4)
    model.zero_grad()
    x = x.detach().requires_grad_()
    loss = call(x)
    loss.backward()
    assert x.grad is not None
    return [loss.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None), torch.rand(2)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_is_part_of_the_graph(reentrant: bool) -> None:
    torch.manual_seed(0)
    model, x = Stack([Block() for _ in range(3)], reentrant), torch.randn(8, 16)
    expected = step(model, model, x)
    fast = compiled(model)
    for _ in range(2):
        torch.testing.assert_close(step(fast, model, x), expected)
    (graph,) = flashover.explain(model)(x.clone().requires_grad_()).graphs
    # Between the blocks one tensor each, and the masks of dropout; the wide ones are computed again.
    assert graph["saved_bytes"] <= 8 * 16 * 4 * 3 * 2
    model.reentrant = None
    (graph,) = flashover.explain(model)(x.clone().requires_grad_()).graphs
    assert graph["saved_bytes"] >= 8 * 64 * 4 * 3


def _scaled(x: torch.Tensor, w: torch.Tensor, *, by: float = 1.0) -> torch.Tensor:
    return (x @ w).tanh() * by


CHECKPOINTED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "spread": lambda x, w: checkpoint(*(_scaled, x, w), use_reentrant=False, by=2.0),
    "partial": lambda x, w: functools.partial(checkpoint, use_reentrant=False)(_scaled, x, w),
    "nested": lambda x, w: checkpoint(
        lambda a: checkpoint(_scaled, checkpoint(_scaled, a, w, use_reentrant=False), w, use_reentrant=False).exp(),
        x,
        use_reentrant=False,
    ),
    "gradient_inside": lambda x, w: torch.autograd.grad(
        checkpoint(_scaled, x, w, use_reentrant=False).sum(), x, create_graph=True
    )[0],
    "closure": lambda x, w: (lambda s: checkpoint(lambda a: (a @ w) * s, x, use_reentrant=False))(x.sigmoid()),
}


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpoint(name: str) -> None:
    agree(CHECKPOINTED[name], leaf(4, 4), leaf(4, 4))


def test_reentrant_checkpoint_with_integers() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return checkpoint(lambda a: ((a @ w).exp(), a.argmax(1)), x, use_reentrant=True)

    x, w = leaf(4, 4), leaf(4, 4)
    y, k = compiled(f)(x, w)
    y.sum().backward()
    got = [x.grad, w.grad]
    x.grad = w.grad = None
    y, expected = f(x, w)
    y.sum().backward()
    torch.testing.assert_close([*got, k], [x.grad, w.grad, expected])


def test_checkpointed_lstm() -> None:
    """The operator knows whether autograd records it: it is not run again."""
    torch.manual_seed(0)
    model, x = Stack([torch.nn.LSTM(4, 4)], False), torch.randn(3, 2, 4)
    model.blocks[0].register_forward_hook(lambda module, args, out: out[0])
    expected = step(model, model, x)
    torch.testing.assert_close(step(compiled(model), model, x), expected)


def test_checkpoint_that_does_things_twice_stays_so() -> None:
    """Statistics of batch norm are updated by the forward and by its second run."""

    class Counting(torch.nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x)

    for make in (lambda: Block(torch.nn.BatchNorm1d(16)), lambda: Counting(16, 16)):
        torch.manual_seed(0)
        model = Stack([make()], False)
        other, x = copy.deepcopy(model), torch.randn(8, 16)
        fast = compiled(model, fullgraph=False)
        for _ in range(3):
            torch.testing.assert_close(step(fast, model, x), step(other, other, x))
        torch.testing.assert_close(list(model.buffers()), list(other.buffers()))
        assert getattr(model.blocks[0], "calls", 0) == getattr(other.blocks[0], "calls", 0)


def test_graph_break_in_a_checkpoint() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).relu()
        if y.sum() > 1e9:
            return y
        return y.exp()

    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(f, x * 2, w, use_reentrant=False).sin()

    agree(call, leaf(3, 4), leaf(4, 4), fullgraph=False)


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


def test_hooks_on_tensors() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * w
        y.register_hook(lambda g: g.clamp(-0.5, 0.5))
        z = y.exp()
        z.register_hook(lambda g: None)
        y.register_hook(lambda g: g + 1)
        return z.sin(), y

    agree(f, leaf(3, 4), leaf(3, 4))

    # A hook whose tensor gets no gradient is not called.
    def two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * w
        y.register_hook(lambda g: g + 1)
        return y.exp(), x.sin()

    x, w = leaf(3), leaf(3)
    compiled(two)(x, w)[1].sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert w.grad is None


def test_hooks_that_do_something() -> None:
    """They are called when the backward runs, each time."""
    seen: list[torch.Tensor] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).sin()
        y.register_hook(lambda g: seen.append(g.clone()))
        return (y * 3).exp()

    fast = compiled(f, fullgraph=False)
    for call in range(3):
        x = leaf(3)
        out = fast(x)
        assert len(seen) == call
        out.sum().backward()
        y = (x * 2).sin().detach()
        torch.testing.assert_close(seen[-1], 3 * (y * 3).exp())
        torch.testing.assert_close(x.grad, seen[-1] * 2 * (x * 2).cos().detach())


def test_conjugate_of_a_number() -> None:
    agree(lambda x: torch.view_as_real(x.to(torch.complex64) * 1j).sum(-1), leaf(3), exact=False)


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


def test_strides_of_what_is_written_into_an_empty_tensor() -> None:
    """Those of the argument, also where a dim of size one leaves a choice."""
    x = torch.empty_strided((8, 1, 3, 17), (51, 1, 17, 1)).normal_().requires_grad_()
    for f in (F.relu6, F.hardtanh, torch.nan_to_num, F.relu):
        assert compiled(f)(x).stride() == f(x).stride(), f


def test_what_eagers_backward_refuses_is_refused() -> None:
    x, y = leaf(4), torch.arange(4)
    with pytest.raises(RuntimeError, match="Found dtype Long but expected Float"):
        compiled(F.mse_loss, fullgraph=False)(x, y).backward()


def test_batch_norm_with_update_in_bf16() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> list[torch.Tensor]:
        return torch.ops.aten._batch_norm_with_update(x, w, None, mean, var, 0.1, 1e-5)

    def run(call: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x, w = torch.randn(4, 3, 5).bfloat16().requires_grad_(), torch.rand(3).bfloat16().requires_grad_()
        mean, var = torch.zeros(3).bfloat16(), torch.ones(3).bfloat16()
        out = call(x, w, mean, var)
        out[0].float().square().sum().backward()
        return [*out, x.grad, w.grad, mean, var]

    for got, want in zip(run(compiled(f)), run(f), strict=True):
        torch.testing.assert_close(got, want)


def test_large_temporaries_do_not_outlive_their_use() -> None:
    """They are no part of the slab, which would lie in memory beside what is kept and beside the gradients."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).tanh().softmax(-1).cumsum(0) @ w).sigmoid().softmax(0)

    explained = flashover.explain(f)(leaf(512, 256), leaf(256, 256))
    for half in ("forward", "backward"):
        text = explained.graphs[0]["texts"][f"plan_{half}"]
        assert "aten.empty_strided" in text and "release" in text
        assert "= slab" not in text
    x, w = leaf(512, 256), leaf(256, 256)
    agree(f, x, w, exact=False)


# ---- hooks on modules, on nodes and for saved tensors; gradients that are retained


def _doubled(module: torch.nn.Module, grad_input: Any, grad_output: Any) -> Any:
    return tuple(g if g is None else g * 2 for g in grad_input)


def _shifted(module: torch.nn.Module, grad_output: Any) -> Any:
    return tuple(g + 1 for g in grad_output)


MODULE_HOOKS: dict[str, Callable[[torch.nn.Sequential], Any]] = {
    "full": lambda m: m[1].register_full_backward_hook(_doubled),
    "pre": lambda m: m[2].register_full_backward_pre_hook(_shifted),
    "both": lambda m: (m[0].register_full_backward_hook(_doubled), m[0].register_full_backward_pre_hook(_shifted)),
    "whole": lambda m: m.register_full_backward_hook(_doubled),
    "old": lambda m: m[1].register_backward_hook(_doubled),
}


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("name", MODULE_HOOKS)
def test_hooks_on_modules(name: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    MODULE_HOOKS[name](model)
    agree(model, leaf(2, 4), exact=False)


def test_module_hook_that_does_something() -> None:
    model, seen = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), []
    model[1].register_full_backward_hook(lambda m, grad_input, grad_output: seen.append(grad_output[0].sum().item()))
    fast = compiled(model, fullgraph=False)
    for call in range(3):
        (fast(leaf(2, 4)) * 2).sum().backward()
        assert seen == [16.0] * (call + 1)


def test_hooks_on_nodes_and_methods() -> None:
    class Scaled(torch.nn.Module):
        scale = 3.0

        def times(self, g: torch.Tensor) -> torch.Tensor:
            return g * self.scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.sin()
            y.register_hook(self.times)
            y.grad_fn.register_prehook(lambda grads: (grads[0] + 1,))
            y.grad_fn.register_hook(lambda to, of: (to[0] - of[0],))
            y.retain_grad()  # nobody can see it
            return y.exp()

    agree(Scaled(), leaf(3))


def test_retained_gradient_of_a_result() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.sin()
        y.retain_grad()
        return y.exp(), y

    fast = compiled(f, fullgraph=False)
    for g in (fast, f, fast):
        z, y = g(torch.zeros(3, requires_grad=True))
        (z * 2).sum().backward()
        assert torch.equal(y.grad, torch.full((3,), 2.0))


def test_hooks_write_what_the_call_made() -> None:
    """Such objects are made from a recipe: a write that only the trace saw would be lost."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        seen: list[torch.Tensor] = []
        y = x.sin()
        y.register_hook(lambda g: seen.append(g))
        return y.exp(), seen

    fast = compiled(f, fullgraph=False)
    for _ in range(2):
        y, seen = fast(torch.zeros(3, requires_grad=True))
        assert seen == []
        y.sum().backward()
        assert torch.equal(seen[0], torch.ones(3))


def test_saved_tensor_hooks_inside() -> None:
    hooks = torch.autograd.graph.saved_tensors_hooks

    def narrow(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with hooks(lambda t: t.to(torch.bfloat16), lambda t: t.float()):
            y = (x @ w).sin()
        with torch.autograd.graph.save_on_cpu():
            return y.exp() * y

    x, w = leaf(3, 4), leaf(4, 4)
    agree(narrow, x, w, exact=False)
    exact = torch.autograd.grad(((x @ w).sin().exp() * (x @ w).sin()).sum(), w)[0]
    got = torch.autograd.grad(compiled(narrow)(x, w).sum(), w)[0]
    assert not torch.allclose(got, exact, rtol=1e-5)  # of what was rounded

    calls: list[int] = []

    def effects(x: torch.Tensor) -> torch.Tensor:
        def unpack(t: torch.Tensor) -> torch.Tensor:
            calls.append(len(calls))
            return t / 2

        with hooks(lambda t: t.detach() * 2, unpack):
            y = x.sin()
            str(calls)
            return y.exp()

    fast = compiled(effects, fullgraph=False)
    for _ in range(2):
        x, calls[:] = leaf(3), []
        fast(x).sum().backward()
        assert calls
        torch.testing.assert_close(x.grad, (x.sin().exp() * x.cos()).detach())


def test_function_whose_backward_reads_data() -> None:
    """The graph breaks at it: what is around it is compiled."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * float(ctx.saved_tensors[0].sum())

    def f(x: torch.Tensor) -> torch.Tensor:
        return Scaled.apply(x.sin()).cos()

    agree(f, leaf(3), exact=False, fullgraph=False)
    assert len(flashover.explain(f)(leaf(3)).graphs) >= 2


def test_registered_operator_whose_backward_reads_data() -> None:
    @torch.library.custom_op("flashover_test::scaled_by", mutates_args=())
    def scaled(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x * by.item()

    scaled.register_fake(lambda x, by: torch.empty_like(x))

    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.by.item(), None

    scaled.register_autograd(backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]))

    def f(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return torch.ops.flashover_test.scaled_by(x.sin(), by).cos()

    agree(f, leaf(3), torch.tensor([3.0]), exact=False)


def test_gradient_that_is_zero_whatever_comes() -> None:
    """It is there, as in eager, when the results that others come from are not used."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * w
        return y.exp(), y.round()

    x, w = leaf(3), leaf(3)
    compiled(f)(x, w)[1].sum().backward()
    assert torch.equal(x.grad, torch.zeros(3)) and torch.equal(w.grad, torch.zeros(3))


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


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("which", ["input", "gradient", "weight"])
def test_layout_of_a_pointwise_convolution_s_gradients(batch: int, which: str) -> None:
    x, w = torch.randn(batch, 4, 8, 8), torch.randn(6, 4, 1, 1)
    if which == "input":
        x = x.contiguous(memory_format=torch.channels_last)
    if which == "weight":
        w = torch.empty_strided(w.shape, (4, 1, 4, 4)).copy_(w)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, w, stride=2)
        return y.contiguous(memory_format=torch.channels_last) * 2 if which == "gradient" else y

    agree(f, x.requires_grad_(), w.requires_grad_())


@pytest.mark.parametrize("rows,columns", [(300, 333), (4096, 17), (65, 5000), (1000, 64), (2051, 40)])
def test_folds_down_the_rows_of_large_matrices(rows: int, columns: int) -> None:
    """Their kernels go through a few rows at a time."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * w
        centred = y - y.mean(0)
        return y.tanh(), y.sum(0), centred.square().sum(0) * w, centred.exp().clamp(max=3), y.amax(0), (y + 1).amin(0)

    agree(f, leaf(rows, columns), leaf(columns), calls=1)
    flat = torch.nn.Sequential(torch.nn.Linear(columns, columns), torch.nn.GELU(), torch.nn.LayerNorm(columns))
    agree(flat, leaf(rows, columns), calls=1, exact=False)


def test_fake_quantization() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros(4, dtype=torch.int32)
        w = torch.fake_quantize_per_channel_affine(w, torch.full((4,), 0.02), zero, 1, -20, 20)
        x = torch.fake_quantize_per_tensor_affine(x, 0.05, 3, 0, 60)
        return torch.fake_quantize_per_tensor_affine(x @ w, torch.tensor(0.1), zero[0], -10, 10)

    agree(f, leaf(3, 8), torch.randn(4, 8).t().requires_grad_(), exact=False)


def test_a_part_of_a_product_that_is_handed_out_and_kept() -> None:
    """As a result it lies as in eager, with gaps; what the backward keeps is dense: one value, two outputs."""
    torch.manual_seed(0)
    linear, norm = torch.nn.Linear(32, 64), torch.nn.LayerNorm(65)
    parameters = [*linear.parameters(), *norm.parameters()]

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = linear(x).chunk(2, 1)[0]
        return half, norm(F.pad(half, (1, 0, 2, 1)))

    x = torch.randn(2, 9, 32)
    got, want = flashover.compile(program)(x), program(x)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    grads = [torch.autograd.grad(sum(t.square().sum() for t in r), parameters) for r in (got, want)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


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


def test_gradients_of_losses_are_contiguous() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        losses = (F.mse_loss, F.smooth_l1_loss, F.huber_loss)
        inner = [torch.autograd.grad(loss(z := x * 1, y, reduction="none").sum(), z)[0] for loss in losses]
        return [*inner, F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2), F.pixel_shuffle(x.transpose(0, 3), 2)]

    x = torch.randn(4, 4, 6, 4).to(memory_format=torch.channels_last).requires_grad_()
    for got, want in zip(flashover.compile(f, fullgraph=True)(x, x.detach() + 1), f(x, x.detach() + 1), strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


def test_a_layer_dropped_with_probability_zero() -> None:
    """rand() < 0 has one answer, and the number is drawn all the same."""

    def f(x: torch.Tensor, p: float) -> torch.Tensor:
        for _ in range(2):
            if not torch.rand([]) < p:
                x = x * 2
        return x + 1 if torch.rand(1, dtype=torch.bfloat16)[0] >= 1.0 else x - torch.rand(())

    x = torch.randn(3)
    for p in (0.0, -1.0, 1.0):
        torch.manual_seed(0)
        want, state = f(x, p), torch.get_rng_state()
        torch.manual_seed(0)
        assert torch.equal(flashover.compile(functools.partial(f, p=p), fullgraph=True)(x), want)
        assert torch.equal(torch.get_rng_state(), state)


def test_a_branch_that_a_random_number_decides() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        u = torch.rand([])
        u.add_(0.5)
        return x * 2 if u >= 1.0 else x

    fast, x = flashover.compile(f), torch.randn(3)
    for seed in range(8):
        torch.manual_seed(seed)
        want = f(x)
        torch.manual_seed(seed)
        assert torch.equal(fast(x), want)
