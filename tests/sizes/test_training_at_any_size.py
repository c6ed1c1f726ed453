"""Gradients at sizes that were not traced: one compile for the first size, one for all."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import flashover

SIZES = (5, 2, 1, 0, 3, 8, 17, 33, 64, 7, 1, 5)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (p.view(b, t, 4, c // 4).transpose(1, 2) for p in self.qkv(x).split(c, -1))
        y = (q @ k.transpose(-2, -1) * (c // 4) ** -0.5).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x.detach() * 3).long().clamp(0, 10)
        return F.cross_entropy(self.head(self.table(tokens)).flatten(0, 1), tokens.flatten())


class TwoResults(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y[1:], y.mean(0), y * x.shape[0], x.detach().sum()


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).cumsum(0).max(-1).values + (x.norm(dim=-1) / x.shape[0])


# name -> (module, shape of n, whether two compiles serve all sizes)
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[int, ...]], bool]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)),
        lambda n: (n, 8),
        True,
    ),
    "residual": (Residual, lambda n: (2, n, 16), True),
    "attention": (Attention, lambda n: (2, n, 16), True),
    "embedding": (Embedded, lambda n: (n, 6), True),
    "several results": (TwoResults, lambda n: (n, 4), False),  # y[1:] of one row is empty
    "reductions": (Noise, lambda n: (n, 16), False),  # the formula of cumsum asks for 1
    "flatten": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Softmax(-1)), lambda n: (n, 3, 4), True),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), lambda n: (2, n, 16), True),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        lambda n: (n, 3, 9, 9),
        True,
    ),
}


# Size 0 is compiled by itself, and why.
OF_NOTHING = {
    "embedding": "cross_entropy of no targets has no rule",
    "flatten": "Flatten counts what is there",
    "encoder": "whether the heads are contiguous is asked",
    "convolution": "batch norm keeps its statistics where there are none",
}


def loss_of(results: object) -> torch.Tensor:
    parts = results if isinstance(results, tuple) else (results,)
    return sum((r.square().sum() for r in parts if r.requires_grad), torch.zeros(()))


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str, dynamic: bool | None) -> None:
    make, shape, whole = PROGRAMS[name]
    torch.manual_seed(0)
    module = make()
    exact, compiled = copy.deepcopy(module).double(), flashover.compile(module, dynamic=dynamic)
    before = flashover.compile_stats()["graphs"]
    for n in SIZES:
        x = torch.randn(shape(n), requires_grad=True)
        y = x.detach().double().requires_grad_()
        module.zero_grad()
        exact.zero_grad()
        results, expected = compiled(x), exact(y)
        loss_of(results).backward()
        loss_of(expected).backward()
        pairs = [*zip(module.parameters(), exact.parameters(), strict=True), (x, y)]
        for a, b in pairs:
            assert (a.grad is None) == (b.grad is None), f"size {n}"
            if a.grad is not None:
                torch.testing.assert_close(
                    a.grad.double(), b.grad, rtol=2e-3, atol=2e-3, equal_nan=True, msg=f"size {n}"
                )
        got = results if isinstance(results, tuple) else (results,)
        want = expected if isinstance(expected, tuple) else (expected,)
        for a, b in zip(got, want, strict=True):
            assert a.stride() == b.stride() and a.requires_grad == b.requires_grad
            torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3, equal_nan=True, msg=f"size {n}")
    if whole:
        # (All sizes of flatten are symbols; their product is compared with the 12 that Linear takes.)
        once = dynamic and name != "flatten"
        assert flashover.compile_stats()["graphs"] - before <= (1 if once else 2) + (name in OF_NOTHING)


NORMS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[int, ...]]]] = {
    "layer norm": (lambda: nn.LayerNorm(8), lambda n: (n, 3, 8)),
    "layer norm without a bias": (lambda: nn.LayerNorm(8, bias=False), lambda n: (n, 8)),
    "layer norm of all that changes": (lambda: Whole(F.layer_norm), lambda n: (3, n)),
    "batch norm": (lambda: nn.BatchNorm2d(4), lambda n: (n, 4, 3, 5)),
    "batch norm of images": (lambda: nn.BatchNorm2d(4), lambda n: (2, 4, n + 1, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), lambda n: (n, 4, 3)),
    "group norm of images": (lambda: nn.GroupNorm(2, 4), lambda n: (2, 4, n + 1, 2)),
    "mean squares": (lambda: Against(F.mse_loss), lambda n: (n, 5)),
    "smooth": (lambda: Against(F.smooth_l1_loss), lambda n: (n, 5)),
    "huber": (lambda: Against(functools.partial(F.huber_loss, delta=0.7)), lambda n: (n, 5)),
    "a slice": (lambda: Against(lambda x, y: (x[1:] * y[:-1]).sum() + (x[:, -3:]).sum()), lambda n: (n + 2, 5)),
}


class Whole(nn.Module):
    """f of the last size, whatever it is."""

    def __init__(self, f: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.f, self.scale = f, nn.Parameter(torch.randn(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(x * self.scale, x.shape[-1:])


class Against(nn.Module):
    def __init__(self, f: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.f, self.scale = f, nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(x * self.scale, x.cos())


@pytest.mark.parametrize("wanted", [True, False], ids=["input's gradient too", "parameters' alone"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_and_losses(name: str, wanted: bool) -> None:
    """One compile, and what divides by a size that changes is fused like any other."""
    make, shape = NORMS[name]
    torch.manual_seed(0)
    module = make()
    exact, compiled = copy.deepcopy(module).double(), flashover.compile(module, dynamic=True)
    before = flashover.compile_stats()["graphs"]
    for n in filter(None, SIZES):  # (of nothing: test_small_sizes.py)
        x = torch.randn(shape(n), requires_grad=wanted)
        y = x.detach().double().requires_grad_(wanted)
        loss_of(compiled(x)).backward()
        loss_of(exact(y)).backward()
        for a, b in [*zip(module.parameters(), exact.parameters(), strict=True), *([(x, y)] if wanted else [])]:
            torch.testing.assert_close(a.grad.double(), b.grad, rtol=2e-3, atol=2e-3, equal_nan=True, msg=f"size {n}")
            a.grad = b.grad = None
        for a, b in zip(module.buffers(), exact.buffers(), strict=True):
            torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=1e-4, equal_nan=True, msg=f"size {n}")
    assert flashover.compile_stats()["graphs"] - before == 1
    told = flashover.explain(module, dynamic=True)(torch.randn(shape(6), requires_grad=wanted)).text()
    assert "extern aten" not in told


def test_a_backward_after_a_forward_of_another_size() -> None:
    module = nn.Linear(4, 3)
    compiled = flashover.compile(module, dynamic=True)
    inputs = [torch.randn(n, 4, requires_grad=True) for n in (3, 5, 2)]
    results = [compiled(x) for x in inputs]
    for x, y in zip(inputs, results, strict=True):
        (y * torch.arange(3.0)).sum().backward()
        torch.testing.assert_close(x.grad, (torch.arange(3.0) @ module.weight.detach()).expand_as(x))


def test_only_some_results_are_differentiated() -> None:
    compiled = flashover.compile(lambda x: (x.sin(), x.cos() * 2), dynamic=True)
    for n in (3, 4, 9):
        x = torch.randn(n, 2, requires_grad=True)
        compiled(x)[1].sum().backward()
        torch.testing.assert_close(x.grad, -2 * x.detach().sin())


def test_more_sizes_than_a_product_holds() -> None:
    compiled = flashover.compile(lambda *parts: torch.cat(parts).sin(), fullgraph=True, dynamic=True)
    before = flashover.compile_stats()
    for n in (8, 9):  # 9 ** 40 is no number of 64 bits
        parts = [torch.randn(n, 6, requires_grad=True) for _ in range(40)]
        compiled(*parts).sum().backward()
        for p in parts:
            torch.testing.assert_close(p.grad, p.detach().cos())
    after = flashover.compile_stats()
    assert (after["graphs"], after["eager_calls"]) == (before["graphs"] + 1, before["eager_calls"])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "flashover"])
def test_sizes_that_only_the_used_results_need(backend: str) -> None:
    """The backward of one result alone computes with a size that none of its tensors has."""

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return y[0] * x, y[1] + x

    fast = flashover.compile(f, backend=backend, dynamic=True, fullgraph=True)
    x = torch.randn(6)
    for rows in (4, 7, 5):
        y = torch.randn(rows, 6)
        for order in ((0,), (1,), (0, 1), (1, 0)):
            found = []
            for g in (f, fast):
                leaf = y.clone().requires_grad_()
                results = g(x, leaf)
                for i in order:
                    results[i].sum().backward(retain_graph=True)
                found.append(leaf.grad)
            assert torch.equal(found[0], found[1]), (rows, order)
