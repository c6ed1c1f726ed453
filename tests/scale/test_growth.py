"""Programs of thousands of operators: how many kernels they become, and that they become them in about linear time (the
bars are in tests/repros/superlinear.py)."""

from __future__ import annotations

import pytest
import torch

import flashover


def kernels_of(function, *args) -> int:
    before = flashover.compile_stats()["kernels"]
    results = flashover.compile(function, options={"cache": False})(*args)
    torch.testing.assert_close(results, function(*args), atol=1e-4, rtol=1e-4)
    return flashover.compile_stats()["kernels"] - before


def chain(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        x = (x - 0.001 * (i % 5)).relu() if i % 2 else x * 1.001 + 0.01
    return x


def test_a_long_chain_is_split_into_kernels() -> None:
    x = torch.randn(8, 16)
    assert kernels_of(lambda x: chain(x, 40), x) == 1
    few, more = kernels_of(lambda x: chain(x, 400), x), kernels_of(lambda x: chain(x, 1200), x)
    assert 2 <= few <= 8 and few < more <= 4 * few


def test_what_is_shared_is_counted_once() -> None:
    """Each step reads the one before twice: 2**30 paths, 60 operators, one kernel."""

    def squared(x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            x = (x + x * 0.5) * 0.6
        return x

    assert kernels_of(squared, torch.randn(64)) == 1


def test_many_independent_results_share_kernels() -> None:
    assert kernels_of(lambda x: [x * (i + 1) for i in range(200)], torch.randn(4, 8)) <= 8


def test_many_inputs_are_summed_in_parts() -> None:
    xs = [torch.randn(4, 4) for _ in range(400)]
    assert 2 <= kernels_of(lambda *xs: sum(xs), *xs) <= 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_split_chains_of_other_types(dtype: torch.dtype) -> None:
    x = torch.randn(8, 16).to(dtype)
    before = flashover.compile_stats()["kernels"]
    got = flashover.compile(lambda x: chain(x, 400), options={"strict_numerics": True})(x)
    torch.testing.assert_close(got, chain(x, 400))
    assert flashover.compile_stats()["kernels"] - before >= 2


def test_training_through_a_split_chain() -> None:
    x = torch.randn(8, 16, requires_grad=True)
    (want,) = torch.autograd.grad(chain(x, 600).sum(), x)
    (got,) = torch.autograd.grad(flashover.compile(lambda x: chain(x, 600))(x).sum(), x)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_a_chain_of_views_is_not_copied() -> None:
    """Views cost nothing: however many there are, they do not make the value they end in a copy of its own."""

    def views(x: torch.Tensor) -> torch.Tensor:
        for i in range(150):
            x = x.t() if i % 2 else x[None].squeeze(0)
        return x + 1

    assert kernels_of(views, torch.randn(6, 8)) == 1
