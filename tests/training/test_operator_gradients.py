"""Gradients of single operators, of those a program registers too: numbers, strides, errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import agree
from differentiating import compiled, leaf

import flashover

pytestmark = pytest.mark.timeout(300)


def test_nan_in_elu() -> None:
    agree(lambda x: F.elu(x).sign() * F.celu(x), torch.tensor([float("nan"), 1.0, -1.0] * 9).requires_grad_())


@pytest.mark.parametrize("mask", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("last", [False, True])
def test_group_norm(last: bool, mask: tuple[bool, bool]) -> None:
    x = torch.randn(2, 6, 3, 5)
    x = (x.to(memory_format=torch.channels_last) if last else x).requires_grad_()
    w, b = (torch.randn(6).requires_grad_(m) for m in mask)
    agree(lambda x, w, b: F.group_norm(x * 2, 3, w, b), x, w, b)
    agree(lambda x: F.group_norm(x * 2, 2), x)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
def test_embedding_bag(mode: str, last: bool) -> None:
    i, o = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2, 4, 6] if last else [0, 2, 4])

    def f(w: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(i, w, o, mode=mode, include_last_offset=last) * 2

    before = flashover.compile_stats()["graphs"]
    agree(f, leaf(8, 5))
    assert flashover.compile_stats()["graphs"] > before
    with torch.no_grad():
        w = torch.randn(8, 5)
        torch.testing.assert_close(compiled(f)(w), f(w))


def test_wrong_shape_functions_in_the_backward() -> None:
    wrong = True

    def narrow(x: torch.Tensor) -> torch.Tensor:
        return (x * 2)[:2].clone() if wrong else x * 2

    def wide(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).double()

    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for name, f in {"narrow": narrow, "wide": wide, "to_narrow": twice, "to_wide": twice}.items():
        torch.library.custom_op(f"flashover_test::{name}", f, mutates_args=(), schema="(Tensor x) -> Tensor")
        torch.library.register_fake(f"flashover_test::{name}", torch.empty_like)
    ops = torch.ops.flashover_test
    for name in ("narrow", "wide"):
        torch.library.register_autograd(f"flashover_test::to_{name}", lambda ctx, g, n=name: getattr(ops, n)(g))
    x = leaf(4)
    compiled(lambda x: ops.to_wide(x.sin()))(x).sum().backward()  # another dtype is converted, as autograd does
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    x = leaf(4)
    fast = compiled(lambda x: ops.to_narrow(x.sin()), fullgraph=False)
    with pytest.raises(RuntimeError, match=r"narrow.default is f32\[2\], not f32\[4\].*register_fake"):
        fast(x).sum().backward()
    wrong = False
    with pytest.warns(RuntimeWarning, match="run eager"):
        fast(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_conjugate_of_a_number() -> None:
    agree(lambda x: torch.view_as_real(x.to(torch.complex64) * 1j).sum(-1), leaf(3), exact=False)


def test_what_eagers_backward_refuses_is_refused() -> None:
    """Of two types: up to torch 2.14 or so eager's own backward fails, later ones give the gradient."""
    x, y = leaf(4), torch.arange(4)
    fast = compiled(F.mse_loss, fullgraph=False)
    try:
        (wanted,) = torch.autograd.grad(F.mse_loss(x, y), x)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            fast(x, y).backward()
    else:
        torch.testing.assert_close(torch.autograd.grad(fast(x, y), x), (wanted,))


IN_PLACE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "elu": lambda x: F.elu_(x.clone(), alpha=-2),
    "celu": lambda x: F.celu_(x.clone(), alpha=-2),
    "leaky_relu": lambda x: F.leaky_relu_(x.clone(), -2),
}


@pytest.mark.parametrize("f", IN_PLACE.values(), ids=IN_PLACE)
def test_falling_slopes_in_place(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The result does not say which side of zero it came from: eager's backward refuses."""
    x = torch.tensor([-1.0, 1.0], requires_grad=True)
    y = compiled(f)(x)
    torch.testing.assert_close(y, f(x))
    with pytest.raises(RuntimeError, match="call out-of-place version"):
        y.sum().backward()


def test_function_whose_backward_reads_data() -> None:
    """The graph breaks at it: what is around it is compiled."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * float(ctx.saved_tensors[0].sum())

    def f(x: torch.Tensor) -> torch.Tensor:
        return Scaled.apply(x.sin()).cos()

    agree(f, leaf(3), exact=False, fullgraph=False)
    assert len(flashover.explain(f)(leaf(3)).graphs) >= 2


def test_registered_operator_whose_backward_reads_data() -> None:
    @torch.library.custom_op("flashover_test::scaled_by", mutates_args=())
    def scaled(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x * by.item()

    scaled.register_fake(lambda x, by: torch.empty_like(x))

    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.by.item(), None

    scaled.register_autograd(backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]))

    def f(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return torch.ops.flashover_test.scaled_by(x.sin(), by).cos()

    agree(f, leaf(3), torch.tensor([3.0]), exact=False)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("which", ["input", "gradient", "weight"])
def test_layout_of_a_pointwise_convolution_s_gradients(batch: int, which: str) -> None:
    x, w = torch.randn(batch, 4, 8, 8), torch.randn(6, 4, 1, 1)
    if which == "input":
        x = x.contiguous(memory_format=torch.channels_last)
    if which == "weight":
        w = torch.empty_strided(w.shape, (4, 1, 4, 4)).copy_(w)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, w, stride=2)
        return y.contiguous(memory_format=torch.channels_last) * 2 if which == "gradient" else y

    agree(f, x.requires_grad_(), w.requires_grad_())


@pytest.mark.parametrize("rows,columns", [(300, 333), (4096, 17), (65, 5000), (1000, 64), (2051, 40)])
def test_folds_down_the_rows_of_large_matrices(rows: int, columns: int) -> None:
    """Their kernels go through a few rows at a time."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * w
        centred = y - y.mean(0)
        return y.tanh(), y.sum(0), centred.square().sum(0) * w, centred.exp().clamp(max=3), y.amax(0), (y + 1).amin(0)

    agree(f, leaf(rows, columns), leaf(columns), calls=1)
    flat = torch.nn.Sequential(torch.nn.Linear(columns, columns), torch.nn.GELU(), torch.nn.LayerNorm(columns))
    agree(flat, leaf(rows, columns), calls=1, exact=False)


def test_fake_quantization() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros(4, dtype=torch.int32)
        w = torch.fake_quantize_per_channel_affine(w, torch.full((4,), 0.02), zero, 1, -20, 20)
        x = torch.fake_quantize_per_tensor_affine(x, 0.05, 3, 0, 60)
        return torch.fake_quantize_per_tensor_affine(x @ w, torch.tensor(0.1), zero[0], -10, 10)

    agree(f, leaf(3, 8), torch.randn(4, 8).t().requires_grad_(), exact=False)


def test_gradients_of_losses_are_contiguous() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        losses = (F.mse_loss, F.smooth_l1_loss, F.huber_loss)
        inner = [torch.autograd.grad(loss(z := x * 1, y, reduction="none").sum(), z)[0] for loss in losses]
        return [*inner, F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2), F.pixel_shuffle(x.transpose(0, 3), 2)]

    x = torch.randn(4, 4, 6, 4).to(memory_format=torch.channels_last).requires_grad_()
    for got, want in zip(flashover.compile(f, fullgraph=True)(x, x.detach() + 1), f(x, x.detach() + 1), strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
