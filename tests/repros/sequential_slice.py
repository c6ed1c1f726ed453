"""A slice of a compiled nn.Sequential computes what the slice of the ordinary one does, also inside of a compiled
forward; so do the other containers that `self.__class__(...)` makes."""

import torch
from torch import nn

import flashover

m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
x = torch.randn(3, 4)
c = flashover.compile(m)
with torch.no_grad():
    c(x)
    assert torch.equal(c[:2](x), m[:2](x))
    assert torch.equal(c[1:](x), m[1:](x))
    assert torch.equal((c[:2] + c[2:])(x), m(x))
    assert c[:2][0] is m[0]


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = flashover.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f[:1](x)


f = Features()
want = f.f[0](x)
assert torch.allclose(f(x), want)
assert torch.allclose(flashover.compile(f)(x), want)
