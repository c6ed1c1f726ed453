"""Functions and modules that torch.compile made, given to flashover.compile."""

import torch
from torch import nn

import flashover


def test_the_original_is_compiled():
    linear = nn.Linear(4, 4)
    compiled = flashover.compile(torch.compile(linear, backend="eager"), backend="eager", fullgraph=True)
    assert compiled._orig_mod is linear
    x = torch.ones(2, 4)
    assert torch.equal(compiled(x), linear(x))

    function = torch.compile(torch.compile(lambda x: x * 2, backend="eager"), backend="eager")
    compiled = flashover.compile(function, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), x * 2)
