"""`operators` of a kernel lists the program's operators that it computes, all of them, in their order."""

import torch

import flashover

F = torch.nn.functional


def operators(f, *args):
    return [k["operators"] for k in flashover.explain(f)(*args).kernels]


def f(x, w):
    return torch.softmax(F.layer_norm(F.gelu(x), (64,), w), -1) * 2


assert operators(f, torch.randn(8, 64), torch.ones(64)) == [["gelu", "native_layer_norm", "_softmax", "mul"]]
assert operators(lambda x: (x.sin() + 1).sum(), torch.ones(1000)) == [["sin", "add", "sum"]]
assert operators(lambda x: F.gelu(x) * 2, torch.ones(1000)) == [["gelu", "mul"]]
many = operators(lambda x: x.sin().cos().tan().exp().relu().abs().neg(), torch.ones(1000))
assert many == [["sin", "cos", "tan", "exp", "relu", "abs", "neg"]], many
twice = operators(lambda x: (x + 1) * (x + 2), torch.ones(1000))
assert twice == [["add", "add", "mul"]], twice
weight = torch.ones(64, requires_grad=True)
training = operators(f, torch.randn(8, 64), weight)
assert any("native_layer_norm_backward" in names for names in training), training
