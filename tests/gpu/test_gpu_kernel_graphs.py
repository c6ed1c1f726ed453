"""Plans of kernels alone, launched as one CUDA graph (options={"kernel_graphs": True}): as if there were none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_tools import agree

import flashover

pytestmark = pytest.mark.gpu
OPTIONS = {"kernel_graphs": True}


def compiled(fn: Callable[..., Any]) -> Any:
    return flashover.compile(fn, fullgraph=True, options=OPTIONS)


def rand(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda")


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: torch.relu(x + 1) * y,
        lambda x, y: (x.softmax(-1), (x * y).sum(0), x.t().contiguous() + 1),
        lambda x, y: (F.layer_norm(x, x.shape[-1:]).cumsum(0), y.mean()),
        lambda x, y: ((x.sum(0) + y).argmax(0), x[1, :5], y),
    ],
)
def test_each_call_has_its_own(fn: Callable[..., Any]) -> None:
    fast = compiled(fn)
    kept = []
    with torch.no_grad():
        for i in range(12):
            x, y = rand(40, 33), rand(40, 33)
            if i % 3 == 0:
                x = x.t().contiguous().t()
            elif i % 3 == 1:
                x = rand(40 * 33 + 1)[1:].view(40, 33)  # off alignment
            kept.append((fast(x, y), fn(x, y)))
    for got, want in kept:
        agree(got, want)


def test_written_inputs_and_numbers() -> None:
    def fn(x: torch.Tensor, scale: float, on_cpu: torch.Tensor) -> torch.Tensor:
        x.mul_(scale)
        return x * on_cpu + x.sum(1, keepdim=True)

    fast = compiled(fn)
    with torch.no_grad():
        for i in range(10):
            x, number = rand(20, 50), torch.tensor(0.5 * i)
            other = x.clone()
            agree(fast(x, 1.0 + i, number), fn(other, 1.0 + i, number))
            agree(x, other)


def test_streams_capture_and_profiler() -> None:
    fast = compiled(lambda x: (x * 2).softmax(-1) + 1)
    plain = lambda x: (x * 2).softmax(-1) + 1  # noqa: E731
    side = torch.cuda.Stream()
    with torch.no_grad():
        x = rand(50, 60)
        for _ in range(5):
            agree(fast(x), plain(x))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                got = fast(x)
        torch.cuda.current_stream().wait_stream(side)
        agree(got, plain(x))
        graph, static = torch.cuda.CUDAGraph(), rand(50, 60)
        with torch.cuda.graph(graph):
            out = fast(static)
        for _ in range(3):
            static.copy_(rand(50, 60))
            fast(x)  # other addresses meanwhile
            graph.replay()
            agree(out, plain(static))
        with torch.profiler.profile():
            agree(fast(x), plain(x))
        agree(fast(x), plain(x))


@pytest.mark.unsanitized
def test_threads() -> None:
    fast = compiled(lambda x: (x * 2).softmax(-1) + x.sum(0))
    wrong: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                x = torch.randn(30, 30, device="cuda", generator=generator)
                try:
                    agree(fast(x), (x * 2).softmax(-1) + x.sum(0))
                except AssertionError as e:
                    wrong.append(str(e))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_training() -> None:
    fast = compiled(lambda x: (F.gelu(x) * x.softmax(-1)).sum())
    for _ in range(6):
        x = rand(30, 40).requires_grad_()
        other = x.detach().clone().requires_grad_()
        fast(x).backward()
        (F.gelu(other) * other.softmax(-1)).sum().backward()
        agree(x.grad, other.grad)


def test_forgotten_while_it_runs() -> None:
    plain = lambda x: (x * 2).softmax(-1) + x.sum(0)  # noqa: E731
    x = rand(300, 300)
    want = plain(x)
    for _ in range(20):
        fast = compiled(plain)
        with torch.no_grad():
            for _ in range(4):
                fast(x)
            torch.cuda._sleep(20_000_000)
            got = fast(x)
        del fast
        flashover.reset()
        junk = torch.full((300, 300), float("nan"), device="cuda")
        agree(got, want)
        del junk


def between(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for i in range(4):
        y = torch.softmax(x @ w, -1)  # kernels between products, memory that comes and goes
        x = F.layer_norm(y * 3 + x.sum(0), (w.shape[0],)).cumsum(-1) + i
        x = x.t().contiguous().t() * 0.1
    return x


@pytest.mark.parametrize("train", [False, True])
def test_between_operators(train: bool) -> None:
    calls = [compiled(between), flashover.compile(between, fullgraph=True, options={"kernel_graphs": False}), between]
    peaks = []
    kept: list[list[torch.Tensor]] = []
    for call in calls:
        torch.manual_seed(1)
        kept.append([])
        for i in range(8):
            x, w = rand(64, 64).requires_grad_(train), rand(64, 64).requires_grad_(train)
            if i == 7:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            y = call(x, w)
            if train:
                y.square().mean().backward()
                kept[-1] += [x.grad, w.grad]
            kept[-1].append(y.detach())
        peaks.append(torch.cuda.max_memory_allocated() - before)
    for got in kept[:2]:
        agree(got, kept[2], rtol=1e-3, atol=1e-4, strides=False)
    assert peaks[0] == peaks[1]
