"""Values of tensor subclasses, of each kind that there is."""

import torch
from torch.testing._internal.two_tensor import TwoTensor


class Sub(torch.Tensor):
    pass


class Wrap(torch.Tensor):
    @classmethod
    def __torch_function__(cls, f, t, a=(), k=None):
        return super().__torch_function__(f, t, a, k or {})


def f(x):
    return torch.sin(x) * 2


VALUES = {
    "plain subclass": torch.ones(3).as_subclass(Sub),
    "__torch_function__": torch.ones(3).as_subclass(Wrap),
    "__torch_dispatch__": TwoTensor(torch.ones(3), torch.ones(3)),
    "jagged": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged),
}
