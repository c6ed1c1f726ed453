"""Tensors that captured code makes of Python values."""

import pytest
import torch

import flashover

LEGACY = {
    "LongTensor": lambda x: x + torch.LongTensor([1, 2]),
    "FloatTensor of a tuple": lambda x: x * torch.FloatTensor((1.5, 2)),
    "BoolTensor": lambda x: torch.where(torch.BoolTensor([True, False]), x, -x),
    "DoubleTensor with a size in it": lambda x: x + torch.DoubleTensor([[x.shape[0]], [3]]),
    "LongTensor that cuts": lambda x: x + torch.LongTensor([1.7, -1.7]),
}


@pytest.mark.parametrize("name", LEGACY)
def test_tensor_types_of_old_are_constructors(name):
    f, x = LEGACY[name], torch.randn(2)
    torch.testing.assert_close(flashover.compile(f, fullgraph=True)(x), f(x))
