"""Values that are compared: every kernel that computes one gives the same bits, whatever lies beside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import flashover

Function = Callable[[torch.Tensor], torch.Tensor]
FUNCTIONS: dict[str, Function] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "written gelu": lambda x: x * 0.5 * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3))),
    "erf": lambda x: 1 + torch.erf(x),
    "silu": F.silu,
    "mish": F.mish,
    "pow": lambda x: x.abs() ** 1.7,
}


def one_hot_of_largest(t: torch.Tensor) -> torch.Tensor:
    return torch.where(t == t.amax(-1, keepdim=True), t * 3, t * 0.5)


def scattered(t: torch.Tensor) -> torch.Tensor:
    return t.scatter_reduce(2, torch.zeros_like(t, dtype=torch.long), t, "amax")


USES: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "amax": lambda x, t: (t.amax(2),),
    "amax and itself": lambda x, t: (t, t.amax(2), x.flatten(1).logsumexp(1)),
    "where": lambda x, t: (one_hot_of_largest(t),),
    "scatter_reduce": lambda x, t: (t, scattered(t), x.flatten(1).logsumexp(1)),
    "clamp": lambda x, t: (t.clamp(max=t.amax(2, keepdim=True)),),
    "infinity norm": lambda x, t: (t.norm(float("inf")),),
}


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_of_largest_values(function: str, use: str, contiguous: bool) -> None:
    """The largest of a row gets the gradient; it was found by another kernel than the one that looks for it."""
    f, u = FUNCTIONS[function], USES[use]
    base = torch.randn(17, 33, 6, generator=torch.Generator().manual_seed(1)).permute(2, 1, 0)
    if contiguous:
        base = base.contiguous()

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return u(x, f(x))

    def step(of: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> torch.Tensor:
        x = base.detach().clone().requires_grad_()
        loss = sum((t * torch.linspace(1, 2, t.numel()).reshape(t.shape)).sum() for t in of(x))
        loss.backward()  # type: ignore[union-attr]
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(step(flashover.compile(program, fullgraph=True)), step(program), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", ["sin", "cos", "tan", "exp", "expm1", "log1p", "tanh", "erf", "sigmoid", "pow"])
def test_bits_do_not_depend_on_neighbours(function: str, dtype: torch.dtype) -> None:
    """In the middle of a vector, in its remainder, alone, beside a value that another algorithm serves."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.abs() ** 1.7 if function == "pow" else getattr(torch, function)(x.abs() if function == "log1p" else x)

    values = torch.randn(40, generator=torch.Generator().manual_seed(2), dtype=dtype) * 3
    rows = values[:, None].expand(40, 37).contiguous()
    beside = rows.clone()
    beside[:, 1::2] = 3e6
    compiled = flashover.compile(f)
    want = compiled(rows)[:, 0]
    others = [
        compiled(rows)[:, 36],
        compiled(rows.t().contiguous().t())[:, 0],
        compiled(rows[:, :3].t())[0],
        compiled(beside)[:, 2],
        torch.stack([compiled(v) for v in values]),
    ]
    for other in others:
        assert torch.equal(other, want)
