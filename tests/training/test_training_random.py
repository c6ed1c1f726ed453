"""Random numbers where autograd records: drawn as eager draws them, the same in the backward."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from differentiating import compiled

import flashover

pytestmark = pytest.mark.timeout(300)


def test_dropout_is_reproducible_and_masks_the_gradient() -> None:
    f = compiled(lambda x: F.dropout(x, 0.5, True))
    x = torch.ones(64, requires_grad=True)
    torch.manual_seed(11)
    y = f(x)
    y.sum().backward()
    torch.manual_seed(11)
    expected = F.dropout(torch.ones(64), 0.5, True)
    assert torch.equal(y, expected) and torch.equal(x.grad, expected)


def test_dropout_of_a_permuted_tensor_draws_as_eager_does() -> None:
    m = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    x = torch.randn(2, 5, 8)
    torch.manual_seed(1)
    got = compiled(m)(x)
    torch.manual_seed(1)
    torch.testing.assert_close(got, m(x))


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
