"""Convolutions over symbols: weights laid out for each size, and kernels that the call chooses by it."""

import copy
import itertools

import pytest
import torch

import flashover
from flashover import _C

ops = torch.ops.flashover
needs_avx512 = pytest.mark.skipif(bool(_C.missing_feature("avx512")), reason="no AVX-512 here")


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    flashover.compile(lambda x: x + 1)(torch.ones(1))


IMAGES = [(16, 16, 16), (3, 10, 10), (1, 12, 9), (8, 4, 4), (1, 56, 56), (2, 1, 1), (1, 7, 7)]


@pytest.mark.parametrize("out, into, kernel, groups", [(960, 160, 1, 1), (64, 32, 3, 1), (48, 1, 5, 48), (24, 8, 3, 2)])
def test_weights_are_laid_out_for_each_size(out, into, kernel, groups):
    torch.manual_seed(0)
    weight, bias = torch.randn(out, into, kernel, kernel), torch.randn(out)
    pad = [kernel // 2] * 2
    packed = ops.convolution_weights(weight, pad, [1, 1], [1, 1], groups, [16, into * groups, 16, 16])
    for _ in range(2):
        for n, h, w in IMAGES:
            x = torch.randn(n, into * groups, h, w).to(memory_format=torch.channels_last)
            y = ops.convolution_of_any_size(x, packed, bias, pad, [1, 1], [1, 1], groups, "none", [], "")
            expected = torch.conv2d(x.double(), weight.double(), bias.double(), 1, pad, 1, groups)
            torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-3)


def test_more_sizes_than_are_asked_for():
    weight = torch.randn(32, 16, 1, 1)
    packed = ops.convolution_weights(weight, [0, 0], [1, 1], [1, 1], 1, [16, 16, 16, 16])
    for h, w in itertools.product(range(1, 12), range(1, 12)):
        x = torch.randn(1, 16, h, w).to(memory_format=torch.channels_last)
        y = ops.convolution_of_any_size(x, packed, None, [0, 0], [1, 1], [1, 1], 1, "none", [], "")
        torch.testing.assert_close(y, torch.conv2d(x, weight), rtol=1e-4, atol=1e-4)


def test_a_tensor_that_holds_no_weights_is_refused():
    x = torch.randn(1, 16, 4, 4)
    with pytest.raises(RuntimeError, match="no result of convolution_weights"):
        ops.convolution_of_any_size(x, torch.empty(0), None, [0, 0], [1, 1], [1, 1], 1, "none", [], "")


@pytest.mark.parametrize("own", [pytest.param(True, marks=needs_avx512), False])
@pytest.mark.parametrize("groups, into, out, kernel", [(24, 1, 24, 3), (24, 1, 24, 5), (1, 32, 32, 3), (2, 8, 24, 1)])
@pytest.mark.parametrize("size", [(1, 1, 1), (2, 30, 31), (3, 5, 4), (0, 8, 8)])
def test_who_computes_is_chosen_by_size(own, groups, into, out, kernel, size):
    torch.manual_seed(0)
    x, weight = torch.randn(size[0], groups * into, *size[1:]), torch.randn(out, into, kernel, kernel)
    pad, one = [kernel // 2] * 2, [1, 1]
    y = ops.convolution_by_size(x, weight, None, one, pad, one, groups, own, False)
    expected = torch.conv2d(x.double(), weight.double(), None, 1, pad, 1, groups)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(y)
    for needed in ([True, True], [True, False], [False, True]):
        made = ops.convolution_backward_by_size(grad, x, weight, one, pad, one, groups, own, False, needed)
        wanted = torch.ops.aten.convolution_backward(
            grad.double(), x.double(), weight.double(), None, one, pad, one, False, [0, 0], groups, [*needed, False]
        )
        for wants, a, b in zip(needed, made, wanted, strict=False):
            if wants:
                torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)


def images(model: torch.nn.Module, sizes: list[tuple[int, int, int]]) -> None:
    reference = copy.deepcopy(model).double()
    fast = flashover.compile(model, dynamic=True, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for n, h, w in sizes:
        x = torch.randn(n, 3, h, w)
        with torch.no_grad():
            torch.testing.assert_close(fast(x).double(), reference(x.double()), rtol=1e-3, atol=1e-4)
    assert flashover.compile_stats()["graphs"] - before <= 2


def test_a_model_of_points_and_depthwise_kernels():
    nn = torch.nn
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 160, 1),
        nn.Hardswish(),
        nn.Conv2d(160, 320, 1),
        nn.BatchNorm2d(320),
        nn.ReLU(),
        nn.Conv2d(320, 320, 3, padding=1, groups=320),
        nn.Sigmoid(),
    ).eval()
    images(model, [(3, 10, 10), (16, 16, 16), (1, 12, 9), (2, 40, 31)])


def test_a_weight_that_changes_is_laid_out_again():
    model = torch.nn.Conv2d(16, 32, 1)
    fast = flashover.compile(model, dynamic=True)
    with torch.no_grad():
        for step in range(3):
            for n, h in ((3, 10), (1, 12), (5, 4)):
                x = torch.randn(n, 16, h, h)
                torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
            model.weight.mul_(-0.5 - step)
