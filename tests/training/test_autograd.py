"""What torch.autograd promises, kept by compiled functions: one program for each behaviour, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from differentiating import compiled
from torch.multiprocessing.reductions import StorageWeakRef

import flashover

pytestmark = pytest.mark.timeout(180)


def test_gradients_of_results_go_when_they_have_been_read() -> None:
    gone: list[bool] = []
    watched: list[StorageWeakRef] = []

    @torch.library.custom_op("flashover_test::see_what_lives", mutates_args=())
    def see_what_lives(x: torch.Tensor) -> torch.Tensor:
        gone.append(watched[-1].expired())
        return x.clone()

    see_what_lives.register_fake(torch.empty_like)

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return see_what_lives(see_what_lives(g.sin()))

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            g = g * 2
            watched.append(StorageWeakRef(g.untyped_storage()))
            return g

    x = torch.randn(64, 64, requires_grad=True)
    Watched.apply(compiled(Seen.apply)(x)).sum().backward()
    assert gone == [True, True]


def gradient(f: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad((f(leaf) * weight).sum(), leaf)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_cumprod_backward_over_zeros_and_infinities(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 7, dtype=dtype)
    x[1, 3] = x[4, 3] = x[0, 2] = x[5, 1] = x[2, 5] = x[3, 5] = 0
    if dtype == torch.float32:
        x[1, 6], x[3, 6], x[4, 1] = float("inf"), 0, float("inf")
    weight = torch.randn(6, 7, dtype=dtype).abs()
    for dim in (0, 1):

        def f(x: torch.Tensor, dim: int = dim) -> torch.Tensor:
            return x.cumprod(dim).abs()

        expected = gradient(f, x, weight)
        assert dtype != torch.float32 or not expected.isfinite().all()
        torch.testing.assert_close(gradient(compiled(f), x, weight), expected, equal_nan=True)


def test_a_long_cumprod_has_a_short_backward() -> None:
    with torch.no_grad():
        x = 1 + torch.randn(2, 600) / 100
    torch.testing.assert_close(
        gradient(compiled(lambda x: x.cumprod(1)), x, torch.ones(())),
        gradient(lambda x: x.cumprod(1), x, torch.ones(())),
    )


def test_what_is_kept_of_a_channels_last_tensor_lies_channels_last() -> None:
    conv = torch.nn.Conv2d(2, 2, 1, stride=2)
    x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)

    def f(x: torch.Tensor) -> torch.Tensor:
        return conv((x + x).split(2, 1)[0])

    (eager,) = torch.autograd.grad(f(x).sum(), conv.weight)
    (got,) = torch.autograd.grad(compiled(f)(x).sum(), conv.weight)
    assert got.stride() == eager.stride() == (2, 1, 2, 2)
    conv.double()  # eager's own gradient is wrong on processors without AVX-512 (oneDNN)
    (exact,) = torch.autograd.grad(f(x.double()).sum(), conv.weight)
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)


def test_an_operator_whose_backward_reads_data_is_part_of_the_graph(tmp_path: Any) -> None:
    @torch.library.custom_op("flashover_test::in_groups", mutates_args=())
    def in_groups(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor, scale: float) -> torch.Tensor:
        out, start = x.new_zeros(x.shape[0], w.shape[2]), 0
        for i, end in enumerate(ends.tolist()):
            out[start:end] = scale * x[start:end] @ w[i]
            start = end
        return out

    in_groups.register_fake(lambda x, w, ends, scale: x.new_empty(x.shape[0], w.shape[2]))

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, ctx.ends, ctx.scale = inputs
        ctx.save_for_backward(x, w)

    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        gx, gw, start = torch.zeros_like(x), torch.zeros_like(w), 0
        for i, end in enumerate(ctx.ends.tolist()):
            gx[start:end] = ctx.scale * g[start:end] @ w[i].T
            gw[i] = ctx.scale * x[start:end].T @ g[start:end]
            start = end
        return gx, gw if ctx.needs_input_grad[1] else None, None, None

    in_groups.register_autograd(backward, setup_context=keep)

    def f(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return in_groups(x * 2, w.transpose(1, 2), ends, 0.5).sin()

    for frozen in (False, True):
        w = torch.randn(3, 5, 4, requires_grad=not frozen)
        for again in range(2):  # the second time from the disk
            flashover.reset()
            before = flashover.compile_stats()["cache_hits"]
            fast = flashover.compile(f, fullgraph=True, options={"cache_dir": str(tmp_path)})
            for ends in (torch.tensor([2, 2, 8]), torch.tensor([0, 7, 7])):
                x = torch.randn(8, 4, requires_grad=True)
                leaves = [x] if frozen else [x, w]
                expected = torch.autograd.grad(f(x, w, ends).square().sum(), leaves)
                got = torch.autograd.grad(fast(x, w, ends).square().sum(), leaves)
                for g, e in zip(got, expected, strict=True):
                    torch.testing.assert_close(g, e)
                    assert g.stride() == e.stride()
            assert flashover.compile_stats()["cache_hits"] == before + again


def test_batch_norm_in_evaluation_then_in_training() -> None:
    """Training writes the statistics that the first call's backward reads; ATen's batch norm does so without a word."""

    def run(compile_fn: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        norm, x = torch.nn.BatchNorm1d(3), torch.randn(4, 3, requires_grad=True)
        f = compile_fn(norm)
        first = f.eval()(x) if f is norm else (norm.eval(), f(x))[1]
        norm.train()
        second = f(x)
        (first.sin().sum() + second.exp().sum()).backward()
        assert norm.running_mean is not None
        assert (norm.running_mean._version, norm.num_batches_tracked._version) == (1, 2)
        return [first, second, x.grad, norm.weight.grad, norm.running_mean, norm.running_var]  # type: ignore[list-item]

    torch.testing.assert_close(run(compiled), run(lambda m: m))


class Halves(torch.autograd.Function):
    """Its backward is no linear function: what it adds does not depend on the gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * 2 + ctx.saved_tensors[0]) + b * 3


class Told(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
        return b if a is None else a if b is None else a * 100 + b


@pytest.mark.parametrize("function", [Halves, Told])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_a_function_some_results_of_which_are_not_used(function: Any, used: tuple[int, ...]) -> None:
    def run(f: Any) -> torch.Tensor:
        x = torch.arange(3.0, requires_grad=True)
        results = f(x)
        torch.stack([results[i] for i in used]).sum().backward()
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(run(compiled(lambda x: function.apply(x * 1), fullgraph=False)), run(function.apply))


def test_a_function_that_is_told_which_results_are_used_in_one_graph() -> None:
    """Both lead to one result: the trace knows what is used."""
    x = torch.arange(3.0, requires_grad=True)
    (got,) = torch.autograd.grad(compiled(lambda x: Told.apply(x)[1].sin())(x).sum(), x)
    torch.testing.assert_close(got, x.detach().mul(3).cos())


@pytest.mark.parametrize("used", [0, 1])
def test_a_module_hook_is_told_which_results_are_used(used: int) -> None:
    class Pair(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2, x * 3

    def run(compile_fn: Any) -> torch.Tensor:
        pair, x = Pair(), torch.arange(3.0, requires_grad=True)
        pair.register_full_backward_hook(lambda _, given, came: (given[0] * (7 if came[0] is None else 5),))
        compile_fn(pair)(x)[used].sum().backward()
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(run(lambda m: compiled(m, fullgraph=False)), run(lambda m: m))
