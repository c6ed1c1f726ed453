"""Gradients of gradients go through a compiled function."""

import torch

import flashover

f = flashover.compile(lambda x: x.sin() * x)
x = torch.randn(3, dtype=torch.double, requires_grad=True)
assert torch.autograd.gradcheck(f, x)
assert torch.autograd.gradgradcheck(f, x)
