"""Functions of tensor subclasses are compiled: plain ones, those with __torch_function__, TwoTensor, jagged nested
tensors."""
# open: docs/limits.md

import torch
from torch.testing._internal.two_tensor import TwoTensor

import flashover


class Sub(torch.Tensor):
    pass


class Wrap(torch.Tensor):
    @classmethod
    def __torch_function__(cls, f, t, a=(), k=None):
        return super().__torch_function__(f, t, a, k or {})


def f(x):
    return torch.sin(x) * 2


nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
values = {
    "plain subclass": torch.ones(3).as_subclass(Sub),
    "__torch_function__": torch.ones(3).as_subclass(Wrap),
    "__torch_dispatch__": TwoTensor(torch.ones(3), torch.ones(3)),
    "jagged": nested,
}
eager = []
for name, v in values.items():
    before = flashover.compile_stats()["frames"]
    flashover.compile(f)(v)
    if flashover.compile_stats()["frames"] == before:
        eager.append(name)
assert not eager, f"run eager: {eager}"
