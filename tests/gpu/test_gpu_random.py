"""Random numbers inside kernels (option fused_random): eager's own bits, and the generator as eager leaves it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import philox_reference
import pytest
import torch
import torch.nn.functional as F
from models import tensors
from torch.utils.checkpoint import checkpoint

import flashover

pytestmark = pytest.mark.gpu
FUSED = {"fused_random": True}


def threads() -> int:
    p = torch.cuda.get_device_properties(0)
    return p.multi_processor_count * (p.max_threads_per_multi_processor // 256) * 256


def sizes() -> list[int]:
    t = threads()
    return [1, 2, 7, 255, 1000, 1024, 5000, t - 1, t, t + 1, 4 * t + 4, (1 << 20) + 3, 1 << 22, 8 * t + 8, 17 * t + 2]


def offset() -> int:
    return torch.cuda.default_generators[0].get_offset()


def state() -> torch.Tensor:
    return torch.cuda.get_rng_state()


def check(
    fn: Callable[..., Any], *args: Any, fused: bool | None = True, calls: int = 3, **compile_arguments: Any
) -> None:
    """Equal bits and generator in every call, from one seed on, whatever was drawn before."""
    fast = flashover.compile(fn, fullgraph=True, options=FUSED)
    results: list[list[Any]] = []
    for f in (fn, fast):
        torch.manual_seed(1234567890123)
        torch.rand(3, device="cuda")
        results.append([])
        for _ in range(calls):
            got = tensors(f(*args))
            results[-1].append(([t.detach().clone() for t in got], state()))
    for n, ((want, s), (got, mine)) in enumerate(zip(*results, strict=True)):
        assert len(want) == len(got)
        for i, (a, b) in enumerate(zip(want, got, strict=True)):
            assert (a.dtype, a.stride()) == (b.dtype, b.stride())
            assert torch.equal(a, b), f"call {n}, result {i}: {int((a != b).sum())} of {a.numel()} differ"
        assert torch.equal(s, mine), f"call {n}: another generator state"
    if fused is not None:
        text = flashover.explain(fn, options=FUSED)(*args).text()
        assert ("flashover.philox_state" in text) == fused, text


def test_the_reference_is_eager() -> None:
    torch.manual_seed(5)
    for n in (1, 1000, 4 * threads() + 4):
        for dtype in (torch.float32, torch.bfloat16):
            x, at = torch.ones(n, device="cuda", dtype=dtype), offset()
            mask = torch.native_dropout(x, 0.1, True)[1]
            assert torch.equal(mask.cpu(), philox_reference.kept(x, 0.1, threads(), 5, at))
            assert offset() - at == philox_reference.increment(n, threads())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_dropout(dtype: torch.dtype) -> None:
    flashover.reset()
    for n in sizes():
        x = torch.randn(n, device="cuda").to(dtype)
        wide = philox_reference.dropout_width(dtype, n) >= 4 or n <= 1 << 20
        check(lambda x: torch.native_dropout(x, 0.1, True), x, fused=wide, calls=2)
        flashover.reset()


@pytest.mark.parametrize("shift", [1, 2, 4, 8])
def test_dropout_of_a_part(shift: int) -> None:
    """Where it begins decides how wide eager's loads are."""
    base = torch.randn(4096 + shift, device="cuda", dtype=torch.bfloat16)
    check(lambda x: torch.native_dropout(x[shift:], 0.1, True), base, fused=None)
    check(lambda x: torch.native_dropout(x, 0.1, True), base[shift:], fused=None)


def test_layouts() -> None:
    image = torch.randn(4, 8, 6, 10, device="cuda").to(memory_format=torch.channels_last)
    check(lambda x: torch.native_dropout(x, 0.5, True), image)
    check(lambda x: torch.native_dropout(x.bfloat16(), 0.5, True), image)
    matrix = torch.randn(64, 96, device="cuda")
    check(lambda x: F.dropout(x).t().contiguous(), matrix)
    check(lambda x: F.dropout(x.t()), matrix, fused=None)
    check(lambda x: F.dropout(x[:, ::2]), matrix, fused=None)
    check(lambda x: F.dropout(x.expand(3, 64, 96)), matrix, fused=None)


@pytest.mark.parametrize("n", [1, 100, 4097, 1 << 20])
def test_distributions(n: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(n, device="cuda").to(dtype)
        check(lambda x: (torch.rand_like(x), torch.rand(x.shape, device=x.device)), x)
        check(lambda x: (torch.randn_like(x), torch.randn(x.shape, device=x.device)), x)
        check(lambda x: torch.bernoulli(x, 0.3), x)
        check(lambda x: x.new_empty(x.shape).bernoulli_(0.7), x)
        flashover.reset()
    x = torch.randn(n, device="cuda")
    check(lambda x: torch.empty_like(x).uniform_(-0.3, 1.7), x)
    check(lambda x: torch.empty_like(x).normal_(2, 0.5), x)
    check(lambda x: (torch.rand_like(x, dtype=torch.float64), torch.randint(5, (7,), device="cuda")), x, fused=False)


def test_one_after_the_other() -> None:
    def several(x: torch.Tensor) -> Any:
        y = F.dropout(x, 0.1)
        z = torch.randperm(10, device=x.device)
        w = torch.rand_like(x) + torch.randn_like(x)
        return y, z, w, F.dropout(y, 0.5), torch.bernoulli(x, 0.5), torch.multinomial(x.abs().view(-1), 3)

    check(several, torch.randn(40, 64, device="cuda"))


class Block(torch.nn.Module):
    def __init__(self, width: int, p: float = 0.1) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.norm, self.p = torch.nn.LayerNorm(width), p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(F.gelu(self.up(x)), self.p)
        return self.norm(x + F.dropout(self.down(y), self.p))


def step(model: torch.nn.Module, x: torch.Tensor, call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    y = call(x)
    (y.float() * torch.arange(y.numel(), device="cuda").view(y.shape).remainder(7)).mean().backward()
    out = [y.detach().clone(), x.grad, *(p.grad for p in model.parameters())]
    model.zero_grad(set_to_none=True)
    return [t for t in out if t is not None]


@pytest.mark.parametrize("graphs", [False, True], ids=["", "graphs"])
@pytest.mark.parametrize("autocast", [False, True], ids=["f32", "bf16"])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "checkpoint"])
def test_training(graphs: bool, autocast: bool, checkpointed: bool) -> None:
    flashover.reset()
    model = torch.nn.Sequential(Block(96), Block(96)).cuda()
    twin = copy.deepcopy(model)
    x = torch.randn(64, 96, device="cuda")

    def forward(m: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                return checkpoint(m, x, use_reentrant=False) if checkpointed else m(x)

        return run

    plain, fast = (
        forward(twin),
        flashover.compile(forward(model), fullgraph=True, options={**FUSED, "cuda_graphs": graphs}),
    )
    results: list[list[Any]] = []
    for m, call in ((twin, plain), (model, fast)):
        torch.manual_seed(99)
        results.append([(step(m, x, call), offset()) for _ in range(6)])
    tolerance = 3e-2 if autocast else 1e-4
    for (want, at), (got, mine) in zip(*results, strict=True):
        for a, b in zip(want, got, strict=True):
            torch.testing.assert_close(b.float(), a.float(), rtol=tolerance, atol=tolerance)
        assert at == mine


def test_forwards_before_backwards() -> None:
    """Each backward draws again what its own forward drew."""
    flashover.reset()
    x = torch.randn(300, 64, device="cuda")
    fast = flashover.compile(lambda x: F.dropout(torch.tanh(x), 0.5), fullgraph=True, options=FUSED)
    torch.manual_seed(3)
    inputs = [x.clone().requires_grad_() for _ in range(3)]
    outputs = [fast(i) for i in inputs]
    torch.rand(5, device="cuda")
    for i, y in reversed(list(zip(inputs, outputs, strict=True))):
        y.sum().backward()
        assert torch.equal(i.grad != 0, y != 0)
    assert not torch.equal(outputs[0], outputs[1])


def test_the_users_own_graph() -> None:
    flashover.reset()
    x = torch.randn(64, 128, device="cuda")

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.relu(F.dropout(x, 0.3)), 0.5)

    fast = flashover.compile(f, fullgraph=True, options=FUSED)
    outputs = []
    for call in (f, fast):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.rand(3, device="cuda")
            y = call(x)
        torch.manual_seed(17)
        for _ in range(3):
            graph.replay()
            outputs.append((y.clone(), offset()))
    for (a, at), (b, mine) in zip(outputs[:3], outputs[3:], strict=True):
        assert torch.equal(a, b) and at == mine


def test_seeds() -> None:
    flashover.reset()
    x = torch.randn(64, 128, device="cuda")
    fast = flashover.compile(lambda x: F.dropout(x, 0.3), fullgraph=True, options=FUSED)
    for seed in (0, 1, (1 << 63) - 1, -1, 1 << 40):
        torch.manual_seed(seed)
        want = F.dropout(x, 0.3)
        torch.manual_seed(seed)
        assert torch.equal(fast(x), want)
        torch.cuda.default_generators[0].set_offset((1 << 34) - 4)
        want = F.dropout(x, 0.3)
        torch.cuda.default_generators[0].set_offset((1 << 34) - 4)
        assert torch.equal(fast(x), want)


def test_side_stream() -> None:
    x = torch.randn(1000, 1000, device="cuda")
    fast = flashover.compile(lambda x: F.dropout(x, 0.3), fullgraph=True, options=FUSED)
    torch.manual_seed(1)
    want = [F.dropout(x, 0.3) for _ in range(4)]
    torch.cuda.synchronize()
    torch.manual_seed(1)
    side, got = torch.cuda.Stream(), []
    for i in range(4):
        if i % 2:
            with torch.cuda.stream(side):
                got.append(fast(x))
        else:
            got.append(fast(x))
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
