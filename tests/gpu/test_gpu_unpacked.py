"""Products of a few rows with weights of eight bits on the GPU: one kernel that unpacks them where it reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flashover

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def scale_behind(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    return (x @ q.t().to(x.dtype)) * scale


def scale_within(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    return torch.nn.functional.silu(x @ (q.to(x.dtype) * scale[:, None]).t())


def with_bias(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, q.to(x.dtype), scale)


def gated(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    y = torch.nn.functional.silu(x) * x
    return x.mean(-1, keepdim=True) + (y @ q.t().to(x.dtype)) * scale


PROGRAMS: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [scale_behind, scale_within, with_bias, gated]


def weight(outer: int, inner: int, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(outer, inner, device="cuda").to(dtype)
    low, high = (0, 256) if dtype == torch.uint8 else (-128, 128)
    return torch.randint(low, high, (outer, inner), device="cuda", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("outer", "inner"), [(515, 1000), (48, 128), (2048, 4096), (9000, 512)])
def test_few_rows(program: Callable[..., Tensor], dtype: torch.dtype, outer: int, inner: int) -> None:
    torch.manual_seed(0)
    q = weight(outer, inner, dtype)
    scale = torch.rand(outer, device="cuda").bfloat16() / 64
    for rows in (2, 16, 17, 32, 33):
        x = torch.randn(rows, inner, device="cuda").bfloat16()
        with torch.no_grad():
            got = flashover.compile(program, fullgraph=True)(x, q, scale)
            want, exact = program(x, q, scale), program(x.double(), q, scale.double())
        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
        error, eagers = ((t.double() - exact).norm() / exact.norm() for t in (got, want))
        assert error <= 1.2 * eagers + 1e-4, (rows, error, eagers)


def library_calls(rows: int, **options: bool) -> int:
    q, scale = weight(2048, 2048, torch.int8), torch.ones(2048, device="cuda").bfloat16()
    x = torch.randn(rows, 2048, device="cuda").bfloat16()
    with torch.no_grad():
        e = flashover.explain(scale_behind, options=options)(x, q, scale)
    return e.text("plan").count("call aten.mm")


def test_which_have_one_kernel() -> None:
    assert [library_calls(rows) for rows in (2, 32, 33)] == [0, 0, 1]
    assert library_calls(8, strict_numerics=True) == 1


def test_weights_that_others_read_are_unpacked_once() -> None:
    q, scale = weight(256, 256, torch.int8), torch.ones(256, device="cuda").bfloat16()
    x = torch.randn(8, 256, device="cuda").bfloat16()

    def twice(x: Tensor, q: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        w = q.to(x.dtype) * scale
        return x @ w.t(), w + 1

    with torch.no_grad():
        for a, b in zip(flashover.compile(twice, fullgraph=True)(x, q, scale), twice(x, q, scale), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-1)
