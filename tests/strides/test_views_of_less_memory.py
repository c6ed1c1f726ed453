"""Operators that work on a contiguous copy, of tensors whose memory is smaller than that."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import flashover


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_convolution_of_an_expanded_tensor(dynamic: bool) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv1d(x.sum().expand(x.shape).reshape(1, 1, -1), w, padding=1)

    x, w = torch.randn(16, 17), torch.ones(2, 1, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = flashover.compile(f, dynamic=dynamic, fullgraph=True)(x, w)
    torch.testing.assert_close(got, f(x, w), rtol=1e-4, atol=1e-4)
    assert got.stride() == f(x, w).stride()
