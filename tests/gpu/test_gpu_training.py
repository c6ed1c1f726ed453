"""Training on CUDA: losses and gradients of compiled models against eager's and an fp64 reference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import models as bench
import pytest
import torch
import torch.nn.functional as F

import flashover

pytestmark = pytest.mark.gpu


def cuda(x: Any) -> Any:
    return x.cuda() if isinstance(x, torch.Tensor) else x


def step(
    model: Any, call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    outputs = [t for t in bench.tensors(call(*args, **kwargs)) if t.requires_grad]
    loss = sum((t.float() if t.dtype != torch.double else t).pow(2).mean() for t in outputs)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


def check(model: torch.nn.Module, args: list[Any], kwargs: dict[str, Any], precision: str) -> None:
    flashover.reset()
    torch.manual_seed(0)
    reference, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    fast = flashover.compile(model, fullgraph=True)
    before = flashover.compile_stats()
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
        for _ in range(2):
            mine = step(model, fast, args, kwargs)
            theirs = step(eager, eager, args, kwargs)
    for _ in range(2):
        exact = step(
            reference, reference, [bench.to_double(a) for a in args], {k: bench.to_double(v) for k, v in kwargs.items()}
        )
    assert flashover.compile_stats()["kernels"] > before["kernels"]
    assert len(mine[1]) == len(theirs[1]) == len(exact[1])
    floor = bench.FLOOR[precision]
    assert bench.error([mine[0]], [exact[0]]) <= 2 * bench.error([theirs[0]], [exact[0]]) + floor
    for a, b in zip(mine[1], theirs[1], strict=True):
        assert (a.dtype, a.shape, a.stride(), a.device) == (b.dtype, b.shape, b.stride(), b.device)
    assert bench.error(mine[1], exact[1]) <= 2 * bench.error(theirs[1], exact[1]) + floor
    for a, b in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_mlp(precision: str) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128),
        torch.nn.GELU(),
        torch.nn.LayerNorm(128),
        torch.nn.Linear(128, 10),
        torch.nn.LogSoftmax(-1),
    ).cuda()
    check(model, [torch.randn(32, 64, device="cuda")], {}, precision)


class Convolutions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16)
        self.down, self.head = torch.nn.Conv2d(16, 32, 3, stride=2), torch.nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.head(F.relu(self.down(x)).mean((2, 3)))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_convolutions(precision: str) -> None:
    check(Convolutions().cuda(), [torch.randn(4, 3, 32, 32, device="cuda")], {}, precision)


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(2, 32, 4, 16).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 32, 64))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_attention(precision: str) -> None:
    check(Attention().cuda(), [torch.randn(2, 32, 64, device="cuda")], {}, precision)


class LearnedBias(torch.nn.Module):
    """As BEiT, Swin and CoAtNet have it: a table of biases by relative position, read into [heads, rows, columns]."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.qkv, self.table = torch.nn.Linear(64, 192), torch.nn.Parameter(torch.randn(31, 4))
        self.register_buffer("index", torch.randint(0, 31, (n, n)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(n, n, 4).permute(2, 0, 1).contiguous().unsqueeze(0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(b, n, 64)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("n", "batch"), [(16, 2), (17, 2), (17, 1)])
def test_learned_bias(n: int, batch: int, precision: str) -> None:
    check(LearnedBias(n).cuda(), [torch.randn(batch, n, 64, device="cuda")], {}, precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["resnet18", "bert", "gpt2", "llama", "vit_base_patch16_224"])
def test_model(name: str, precision: str) -> None:
    model, args, kwargs = bench.make(name, small=True)
    for m in model.modules():
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0
    model = model.cuda().train(name == "resnet18")
    kwargs = {k: cuda(v) for k, v in kwargs.items()}
    args = [cuda(a) for a in args]
    if name == "resnet18":
        args = [torch.randn(8, 3, 64, 64, device="cuda")]
    check(model, args, kwargs, precision)


def test_optimizer_steps() -> None:
    """Parameters move; compiled steps follow eager's."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).cuda()
    eager = copy.deepcopy(model)
    fast = flashover.compile(model)
    a, b = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(eager.parameters())
    for _ in range(5):
        x = torch.randn(8, 16, device="cuda")
        for m, optimizer in ((fast, a), (eager, b)):
            optimizer.zero_grad()
            m(x).square().mean().backward()
            optimizer.step()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
