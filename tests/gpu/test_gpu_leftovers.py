"""What was right in eager and not compiled, or not right, on CUDA alone."""

from __future__ import annotations

import pytest
import torch
from gpu_tools import agree

import flashover

pytestmark = pytest.mark.gpu


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def test_statistics_that_a_batch_norm_hands_out():
    x, w, m, v = rand(2, 1), torch.ones(1, device="cuda"), torch.zeros(1, device="cuda"), torch.ones(1, device="cuda")

    def f(x):
        return torch.native_batch_norm(x, w, w, m.clone(), v.clone(), True, 0.1, 1e-5)

    got, want = flashover.compile(f)(x), f(x)
    assert [t.shape for t in got] == [t.shape for t in want]
    torch.testing.assert_close(got, want)


PROGRAMS = {
    "ifft": lambda x: torch.fft.ifft(x) * 2,
    "ihfft": lambda x: torch.fft.ihfft(x) * 2,
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2),
    "unsafe_split": lambda x: torch.unsafe_split(x, 3),
    "eig": lambda x: torch.linalg.eigvals(x @ x.t() + 40 * torch.eye(len(x), device="cuda")).abs().sort().values,
    "LongTensor": lambda x: x + torch.LongTensor([1, 2]).to(x.device).float().sum(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_is_one_graph(name):
    f, x = PROGRAMS[name], rand(6, 6)
    before = flashover.compile_stats()["graphs"]
    agree(flashover.compile(f, fullgraph=True)(x), f(x))
    assert flashover.compile_stats()["graphs"] == before + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_differences_of_products_are_rounded_as_eagers(dtype):
    """An fma of b * b - k * k leaves what was rounded off, where eager has zero: the root of less is no number."""
    b = torch.rand(4096, device="cuda", dtype=dtype) * 30

    def f(b, k):
        return (b * b - k * k).sqrt(), 1 / (b * k - k * b), torch.log(2 * b * k - (b.square() + k.square()))

    fast = flashover.compile(f, fullgraph=True)
    for k in (b.clone(), -b):
        torch.testing.assert_close(fast(b, k), f(b, k), equal_nan=True, rtol=0, atol=0)
    windows = [torch.signal.windows.kaiser(n, beta=beta, sym=False, device="cuda", dtype=dtype) for n, beta in KAISER]
    fast = flashover.compile(
        lambda: [torch.signal.windows.kaiser(n, beta=beta, sym=False, device="cuda", dtype=dtype) for n, beta in KAISER]
    )
    torch.testing.assert_close(fast(), windows, rtol=1e-5, atol=1e-7)


KAISER = [(n, beta) for n in (2, 5, 50) for beta in (0.3, 1.234, 7.77, 12.3, 29.9)]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("kinds", [(torch.int32, torch.int64), (torch.int64, torch.int32)])
def test_bags_of_two_types_of_ints(mode, kinds):
    w = rand(10, 4).requires_grad_()
    i = torch.tensor([1, 2, 4, 5, 4, 3], device="cuda", dtype=kinds[0])
    o = torch.tensor([0, 3], device="cuda", dtype=kinds[1])

    def f(w):
        return torch.nn.functional.embedding_bag(i, w, o, mode=mode)

    found = []
    for call in (flashover.compile(f, fullgraph=True), f):
        y = call(w)
        found.append((y, *torch.autograd.grad(y.square().sum(), w)))
    torch.testing.assert_close(*found)


def test_pooling_of_one_image_whose_channels_are_last():
    x = rand(6, 6, 6, 3).permute(3, 0, 1, 2).requires_grad_()

    def f(x):
        return torch.nn.functional.max_pool3d(x * 1, 2)

    found = []
    for call in (flashover.compile(f, fullgraph=True), f):
        y = call(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), x)))
    torch.testing.assert_close(*found, check_stride=True)


def test_topk_into_parts_of_tensors_over_breaks():
    def f(t):
        values, indices = torch.empty_like(t)[::2], torch.empty(18, device=t.device, dtype=torch.long)[::3]
        found = []
        for ordered in (True, False):
            torch.topk(t, 6, sorted=ordered, out=(values, indices))
            found += t.topk(6, sorted=ordered)
            torch._dynamo.graph_break()
            found += [values.clone(), indices.clone()]
        return found

    fast = flashover.compile(f)
    for _ in range(3):
        t = rand(12)
        torch.testing.assert_close(fast(t), f(t))
