"""`c.forward(x)` of a compiled module is compiled, as `c(x)` is. It runs no hooks, as that of an ordinary one does not,
and follows what replaces forward."""

import torch
from torch import nn

import flashover


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x).relu()


x = torch.randn(2, 4)
m = Net()
c = flashover.compile(m)
c.register_forward_hook(lambda module, args, out: out + 1)
before = flashover.compile_stats()["frames"]
for _ in range(3):
    assert torch.allclose(c.forward(x), m.forward(x))
assert flashover.compile_stats()["frames"] == before + 1
assert torch.allclose(c(x), m.forward(x) + 1)
old = Net.forward
Net.forward = lambda self, x: old(self, x) * 2
assert torch.allclose(c.forward(x), m.l(x).relu() * 2)
c.forward = lambda x: x
assert c.forward(x) is x
assert torch.equal(c(x), x + 1)
del c.forward
Net.forward = old
assert torch.allclose(c.forward(x), m.l(x).relu())
