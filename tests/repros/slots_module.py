"""State in `__slots__` of a module's class is shared by the compiled module and its original."""

import copy

import torch

import flashover


class Scaled(torch.nn.Module):
    __slots__ = ("extra",)

    def __init__(self) -> None:
        super().__init__()
        self.extra = 3
        self.l = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x) * self.extra


m = Scaled()
x = torch.randn(4, 4)
c = flashover.compile(m)
assert c.extra == 3
assert torch.allclose(c(x), m(x))
c.extra = 5
assert m.extra == 5
assert torch.allclose(c(x), m.l(x) * 5)
del c.extra
assert not hasattr(m, "extra")
assert not hasattr(c, "extra")
other = copy.deepcopy(c)  # nn.Module copies no slots
assert not hasattr(other, "extra")
other.extra = 4
assert not hasattr(m, "extra")
assert torch.allclose(other(x), m.l(x) * 4)
