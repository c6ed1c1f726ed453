"""Tied parameters that load_state_dict(assign=True) made two, of one memory: a compiled function that writes them runs
compiled."""

# open: docs/limits.md
import copy

import torch
from torch import nn

import flashover

up, down = nn.Linear(4, 4), nn.Linear(4, 4)
down.weight = up.weight
tied = nn.ModuleList([up, down])
tied.load_state_dict(copy.deepcopy(tied.state_dict()), assign=True)
assert up.weight is not down.weight and up.weight.data_ptr() == down.weight.data_ptr()


@torch.no_grad()
def decay(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.mul_(0.5) + b


expected = up.weight.detach().clone()  # a half, twice
result = flashover.compile(decay, options={"eager_warning": False})(up.weight, down.weight)
assert torch.equal(result, expected), "the write is not seen in the other"
assert flashover.compile_stats()["eager_calls"] == 0, "it ran eager"
