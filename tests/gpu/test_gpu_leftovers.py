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
