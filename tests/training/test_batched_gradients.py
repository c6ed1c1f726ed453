"""Many output gradients at once (`is_grads_batched`, vmap over a vector-Jacobian product)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import flashover

pytestmark = pytest.mark.timeout(120)


def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.tanh(x @ w)
    return y, (y * y).sum(0)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 3, generator=g, dtype=torch.double) for n in (4, 3))
    return x.requires_grad_(), w.requires_grad_()


def by_autograd(results: tuple[torch.Tensor, ...], of: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    given = torch.arange(60.0, dtype=torch.double).view(5, 4, 3)
    return torch.autograd.grad(results[0], of, given, is_grads_batched=True, retain_graph=True)


def by_vmap(results: tuple[torch.Tensor, ...], of: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    def vjp(v: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(results, of, (v, u), retain_graph=True)

    v, u = torch.arange(60.0, dtype=torch.double).view(5, 4, 3), torch.ones(2, 3, dtype=torch.double)
    both = torch.func.vmap(torch.func.vmap(vjp, (None, 0)), (0, None))
    return (
        both(v, u)
        + torch.func.vmap(vjp, (0, None))(v, u[0])
        + torch.func.vmap(vjp, (2, None), 1)(v.permute(1, 2, 0), u[1])
    )


@pytest.mark.parametrize("ask", [by_autograd, by_vmap])
def test_as_eager(ask: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    of = inputs()
    ours = ask(flashover.compile(program, fullgraph=True)(*of), of)
    for got, want in zip(ours, ask(program(*of), of), strict=True):
        torch.testing.assert_close(got, want)


def test_gradcheck() -> None:
    of = inputs()
    assert torch.autograd.gradcheck(flashover.compile(program), of, check_batched_grad=True)


def test_what_was_saved_goes_with_the_last_row() -> None:
    of = inputs()
    results = flashover.compile(program)(*of)
    given = torch.ones(2, 3, dtype=torch.double)
    torch.autograd.grad(results[1], of, given, is_grads_batched=True)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(results[1], of, given, is_grads_batched=True)


def test_an_error_inside_leaves_no_level_of_vmap() -> None:
    def fail(v: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        try:
            torch.autograd.functional.jacobian(lambda a: a * 2, y, vectorize=True)
            torch._vmap_internals._vmap(torch.compiler.disable(fail))(y)
        except ValueError:
            y = y + 1
        return y

    fast = flashover.compile(f)
    for _ in range(2):
        torch.testing.assert_close(fast(torch.ones(3)), torch.full((3,), 3.0))
        torch.randn(1)  # raises where a level is left
