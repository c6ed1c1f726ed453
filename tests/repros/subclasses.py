"""Tensor subclasses give eager's results and types."""

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
for name, v in values.items():
    want, got = f(v), flashover.compile(f)(v)
    assert type(got) is type(want), (name, type(got))
    pairs = [(want.a, got.a), (want.b, got.b)] if isinstance(v, TwoTensor) else [(want, got)]
    for a, b in pairs:
        a, b = (a.values(), b.values()) if a.is_nested else (a, b)
        torch.testing.assert_close(torch.Tensor(b), torch.Tensor(a))
