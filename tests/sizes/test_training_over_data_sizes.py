"""Gradients through sizes that follow from data: one compile, whole, right for every number of elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import differ
from torch import Tensor

import flashover


def experts(x: Tensor, w: Tensor, m: Tensor) -> Tensor:
    """Tokens are routed to one of three experts, as a mixture does."""
    choice = torch.arange(x.shape[0]) % 3 * m
    out = torch.zeros_like(x)
    for e in range(3):
        (rows,) = torch.where(choice == e)
        out = out.index_add(0, rows, torch.tanh(x[rows] @ w) * (e + 1))
    return out


def best_experts(x: Tensor, w: Tensor, m: Tensor) -> Tensor:
    weights, chosen = (x @ w).softmax(-1).topk(2, -1)
    out = torch.zeros_like(x)
    for e in range(4):
        token, place = torch.where((chosen == e) & m.unsqueeze(1))
        out.index_add_(0, token, (x[token] * w[e]).sin() * weights[token, place].unsqueeze(1))
    return out


def split_by_data(x: Tensor, w: Tensor, m: Tensor) -> Tensor:
    n = m.sum()
    first, second = (x @ w).split(torch.stack([n, x.shape[0] - n]).tolist())
    return first.exp().sum() + second.sin().sum()


def only_a_count(x: Tensor, w: Tensor, m: Tensor) -> Tensor:
    """Nothing that the backward reads has the size itself."""
    n = m.sum().item()
    return (x.sum(0) @ w).expand(n, 4).sum(0)


PROGRAMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "masked loss": lambda x, w, m: F.mse_loss(x @ w, x.flip(0), reduction="none")[m].mean(),
    "rows": lambda x, w, m: (x[m] @ w).relu(),
    "index_select": lambda x, w, m: (x.index_select(0, torch.nonzero(m).squeeze(1)) @ w).tanh().sum(),
    "masked_select": lambda x, w, m: (x @ w).masked_select(m.unsqueeze(1)).square().sum(),
    "cross entropy": lambda x, w, m: F.cross_entropy((x @ w)[m], m.long()[m], reduction="sum"),
    "layer norm": lambda x, w, m: F.layer_norm(x[m] @ w, (4,), w[0], w[1]),
    "both sides": lambda x, w, m: torch.cat([x[m] @ w, x[~m] * 2]),
    "softmax": lambda x, w, m: torch.softmax(x[m] @ w, -1) * x[m],
    "repeated": lambda x, w, m: x.repeat_interleave(m.long() * 2, dim=0) @ w,
    "scattered": lambda x, w, m: torch.zeros(3, 4, dtype=x.dtype).index_add(0, m.nonzero()[:, 0] % 3, x[m]) @ w,
    "experts": experts,
    "best experts": best_experts,
    "split": split_by_data,
    "only a count": only_a_count,
}


# Autograd expands a number to the rows, and asks whether there is one: that call has a version of its own.
ONE_IS_SPECIAL = {"masked loss", "index_select", "split", "only a count"}


def masks(n: int) -> dict[str, Tensor]:
    return {
        "some": torch.arange(n) % 3 == 1,
        "none": torch.zeros(n, dtype=torch.bool),
        "one": torch.arange(n) == n // 2,
        "all": torch.ones(n, dtype=torch.bool),
        "random": torch.rand(n) > 0.5,
    }


def gradients(f: Callable[..., Tensor], x: Tensor, w: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = f(x, w, m)
    (y * torch.linspace(0.5, 1.5, max(y.numel(), 1), dtype=y.dtype)[: y.numel()].view(y.shape)).sum().backward()
    none = torch.zeros(())
    return y.detach(), *(none if t.grad is None else t.grad for t in (x, w))


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_trains_at_every_number_of_elements(name: str) -> None:
    f = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()
    torch.manual_seed(0)
    for what, mask in masks(12).items():
        x, w = torch.randn(12, 4), torch.randn(4, 4)
        got, want = gradients(compiled, x, w, mask), gradients(f, x, w, mask)
        exact = gradients(f, x.double(), w.double(), mask)
        assert (wrong := differ(got, want, rtol=1e-4, atol=1e-5)) == "", f"{what}: {wrong}"
        wrong = differ([t.double() for t in got], [t.double() for t in exact], rtol=1e-4, atol=1e-4, strides=False)
        assert wrong == "", f"{what}, fp64: {wrong}"
    after = flashover.compile_stats()
    assert after["graphs"] - before["graphs"] == 1 + (name in ONE_IS_SPECIAL)
    assert after["eager_calls"] == before["eager_calls"]
    assert after["graph_breaks"] == before["graph_breaks"]


def test_both_kinds_of_sizes() -> None:
    flashover.reset()
    compiled = flashover.compile(experts, fullgraph=True, dynamic=True)
    before = flashover.compile_stats()["graphs"]
    for n in (6, 12, 3, 17):
        for what, mask in masks(n).items():
            x, w = torch.randn(n, 4), torch.randn(4, 4)
            got, want = gradients(compiled, x, w, mask), gradients(experts, x, w, mask)
            assert (wrong := differ(got, want, rtol=1e-4, atol=1e-5)) == "", f"{n} rows, {what}: {wrong}"
    assert flashover.compile_stats()["graphs"] - before == 1


def test_backwards_that_come_later() -> None:
    """Each goes by the sizes of its own forward."""

    def f(x: Tensor, m: Tensor) -> Tensor:
        return (x[m] * x[m].sin()).sum()

    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    inputs = [(torch.randn(12, 4, requires_grad=True), m) for m in masks(12).values()]
    losses = [compiled(x, m) for x, m in inputs]
    for loss, (x, m) in reversed(list(zip(losses, inputs, strict=True))):
        loss.backward()
        (want,) = torch.autograd.grad(f(x, m), x)
        assert torch.allclose(x.grad, want, atol=1e-6)


def test_one_element_may_be_a_version_of_its_own() -> None:
    def f(x: Tensor, m: Tensor) -> Tensor:
        y = x * 2
        y[m] = x[m].sin()
        return y.sum()

    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()
    for mask in list(masks(12).values()) * 2:
        x, want = torch.randn(12, 4, requires_grad=True), torch.zeros(12, 4)
        compiled(x, mask).backward()
        want = torch.where(mask.unsqueeze(1), x.detach().cos(), torch.full_like(x, 2.0))
        assert torch.allclose(x.grad, want, atol=1e-5)
    assert flashover.compile_stats()["graphs"] - before["graphs"] == 2
    assert flashover.compile_stats()["eager_calls"] == before["eager_calls"]


class Groups:
    """A registered operator whose backward reads the ends of its groups, which is no part of a graph."""

    library = torch.library.Library("flashover_groups", "FRAGMENT")

    @staticmethod
    def forward(x: torch.Tensor, scales: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        out, start = torch.zeros_like(x), 0
        for scale, end in zip(scales, ends.tolist(), strict=True):
            out[start:end] = x[start:end] * scale
            start = end
        return out

    @staticmethod
    def keep(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, scales, ends = ctx.saved_tensors
        of_x = torch.zeros(ctx.shape, dtype=grad.dtype, device=grad.device)
        of_scales, start = torch.zeros_like(scales), 0
        for i, end in enumerate(ends.tolist()):
            of_x[start:end] = grad[start:end] * scales[i]
            of_scales[i] = (grad[start:end] * x[start:end]).sum()
            start = end
        return of_x, of_scales, None

    @classmethod
    def register(cls) -> Any:
        name = "flashover_groups::scaled"
        torch.library.custom_op(
            name, cls.forward, mutates_args=(), schema="(Tensor x, Tensor scales, Tensor ends) -> Tensor"
        )
        torch.library.register_fake(name, lambda x, scales, ends: torch.empty_like(x))
        torch.library.register_autograd(name, cls.backward, setup_context=cls.keep)
        return torch.ops.flashover_groups.scaled


def test_backwards_of_operators_that_read_data_serve_all_sizes() -> None:
    scaled = Groups.register()

    def f(x: torch.Tensor, scales: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return scaled(x * 2, scales.exp(), ends).sin()

    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for n, width in ((6, 4), (9, 5), (2, 3), (12, 2), (7, 8)):
        ends = torch.tensor([n // 3, n // 2, n])
        inputs = [torch.randn(n, width), torch.randn(3)]
        got, want = ([t.clone().requires_grad_() for t in inputs] for _ in range(2))
        a, b = compiled(*got, ends), f(*want, ends)
        torch.testing.assert_close(a, b)
        a.square().sum().backward()
        b.square().sum().backward()
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x.grad, y.grad)
            assert x.grad.stride() == y.grad.stride()
    assert flashover.compile_stats()["graphs"] - before == 2


def test_gradients_of_transposed_weights_lie_as_eagers() -> None:
    """A weight is read transposed (as experts' are), and its gradient comes transposed: no copy turns it round."""

    class Rows:
        @staticmethod
        def forward(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            parts, start = [], 0
            for i, end in enumerate(ends.tolist()):
                parts.append(x[start:end] @ weight[i])
                start = end
            return torch.cat(parts)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            x, weight, ends = ctx.saved_tensors
            of_x, of_weight, start = torch.empty_like(x), torch.empty_like(weight), 0
            for i, end in enumerate(ends.tolist()):
                of_x[start:end] = grad[start:end] @ weight[i].T
                of_weight[i] = x[start:end].T @ grad[start:end]
                start = end
            return of_x, of_weight, None

    name = "flashover_groups::rows"
    torch.library.custom_op(
        name, Rows.forward, mutates_args=(), schema="(Tensor x, Tensor weight, Tensor ends) -> Tensor"
    )
    torch.library.register_fake(name, lambda x, weight, ends: x.new_empty(x.shape[0], weight.shape[2]))
    torch.library.register_autograd(
        name, Rows.backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )
    rows = torch.ops.flashover_groups.rows
    weight = torch.nn.Parameter(torch.randn(3, 6, 4))
    lies: list[tuple[int, ...]] = []
    weight.register_hook(lambda g: lies.append(g.stride()))

    def f(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return rows(x, weight.transpose(1, 2), ends).square().sum()

    compiled = flashover.compile(f, fullgraph=True, dynamic=True)
    for n in (7, 12, 5):
        x, ends = torch.randn(n, 4), torch.tensor([n // 3, n // 2, n])
        f(x, ends).backward()
        want, weight.grad = weight.grad, None
        compiled(x, ends).backward()
        torch.testing.assert_close(weight.grad, want)
        weight.grad = None
    assert len(lies) == 6 and set(lies) == {(24, 4, 1)}


@pytest.mark.parametrize("read", [(0,), (1,), (0, 1)], ids=str)
def test_results_that_are_parts_of_an_input(read: tuple[int, ...]) -> None:
    """No value that the backward is given has their sizes, and a part that nobody reads has no gradient."""

    def f(x: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
        first, second = sizes.tolist()
        return torch.split(x, [first, second])

    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()
    for first in (7, 3, 10, 0):
        x = torch.randn(10, requires_grad=True)
        parts = compiled(x, torch.tensor([first, 10 - first]))
        assert [len(p) for p in parts] == [first, 10 - first]
        sum(parts[i].sin().sum() for i in read).backward()
        inside = torch.arange(10) < first
        want = x.detach().cos() * (inside if read == (0,) else ~inside if read == (1,) else 1)
        torch.testing.assert_close(x.grad, want)
    after = flashover.compile_stats()
    assert after["graphs"] - before["graphs"] == 1 and after["eager_calls"] == before["eager_calls"]
