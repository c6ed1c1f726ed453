"""A result of a compiled call that the program keeps (here the weight that old-style weight norm leaves in its module)
keeps alive only what its own gradient needs, as in eager: other parameters can be swapped after the backward."""

# open: docs/limits.md
import warnings

import torch
from torch import nn

import flashover

warnings.simplefilter("ignore")
model = nn.Sequential(nn.Linear(4, 4), nn.utils.weight_norm(nn.Linear(4, 4)))
compiled = flashover.compile(model)
compiled(torch.randn(3, 4)).sum().backward()
assert model[0].weight._use_count() == 1, f"{model[0].weight._use_count()} references to a parameter"
torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.randn(4, 4)))
