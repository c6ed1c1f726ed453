"""The class of a compiled module is that of its original."""

# open: docs/limits.md
from torch import nn

import flashover

m = nn.Linear(2, 2)
c = flashover.compile(m)
assert c.__class__ is nn.Linear
assert type(c) is nn.Linear
