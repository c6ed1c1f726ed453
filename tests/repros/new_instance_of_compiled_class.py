"""Modules that are made from the class of a compiled one (type(c)(...), self.__class__(...), from_pretrained, the
replicas of DataParallel) are modules of their own: they compute with their weights and train them."""

import torch
from torch import nn

import flashover


class Net(nn.Module):
    def __init__(self, n: int = 4) -> None:
        super().__init__()
        self.l = nn.Linear(n, n)

    @classmethod
    def from_config(cls, n: int) -> "Net":
        return cls(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x)

    def zeros(self) -> "Net":
        m = self.__class__(self.l.in_features)
        nn.init.zeros_(m.l.weight)
        nn.init.zeros_(m.l.bias)
        return m


x = torch.randn(2, 4)
m = Net()
c = flashover.compile(m)
c(x)
for new in (type(c)(4), c.__class__(4), type(c).from_config(4), c.from_config(4)):
    assert torch.equal(new(x), new.l(x))
    assert new.l is not m.l
    new(x).sum().backward()
    assert new.l.weight.grad is not None
    assert m.l.weight.grad is None
    assert isinstance(new, type(c))
assert (c.zeros()(x) == 0).all()
assert type(c)(6)(torch.randn(2, 6)).shape == (2, 6)
replica = c._replicate_for_data_parallel()
replica._modules = {"l": nn.Linear(4, 4)}  # what nn.parallel.replicate does
assert torch.equal(replica(x), replica._modules["l"](x))
assert torch.allclose(c(x), m(x))
