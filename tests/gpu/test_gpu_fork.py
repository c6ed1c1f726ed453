"""Children of a process that used CUDA, such as a DataLoader's workers, call what is compiled for the CPU."""

from __future__ import annotations

import pytest
import torch
from processes import in_child

import flashover

pytestmark = pytest.mark.gpu


def test_a_child_of_a_user_of_cuda_calls_and_compiles():
    def f(x):
        return (x * 2).sin() + 1

    torch.ones(3, device="cuda").sum().item()
    fast, x = flashover.compile(f), torch.randn(8)
    with torch.no_grad():
        want = f(x)
        fast(x)
        in_child(lambda: torch.allclose(fast(x), want) and torch.allclose(flashover.compile(f)(x[:3]), want[:3]))
        torch.testing.assert_close(fast(x), want)


def twice(x):
    return x * 2


FAST = flashover.compile(twice, fullgraph=True)


def test_workers_of_a_data_loader():
    torch.ones(3, device="cuda").sum().item()
    data = [torch.full((4,), float(i)) for i in range(8)]
    FAST(data[0])
    loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, collate_fn=lambda b: FAST(torch.stack(b)))
    got = torch.cat(list(loader))
    torch.testing.assert_close(got, torch.stack(data) * 2)
