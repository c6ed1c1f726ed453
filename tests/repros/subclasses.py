"""Tensor subclasses give eager's results and types."""

import torch
from _subclasses import VALUES, f
from torch.testing._internal.two_tensor import TwoTensor

import flashover

for name, v in VALUES.items():
    want, got = f(v), flashover.compile(f)(v)
    assert type(got) is type(want), (name, type(got))
    pairs = [(want.a, got.a), (want.b, got.b)] if isinstance(v, TwoTensor) else [(want, got)]
    for a, b in pairs:
        a, b = (a.values(), b.values()) if a.is_nested else (a, b)
        torch.testing.assert_close(torch.Tensor(b), torch.Tensor(a))
