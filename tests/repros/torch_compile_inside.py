"""A function or module that torch.compile made is captured through inside of flashover.compile, with its fullgraph;
flashover.compile of one compiles the original."""

import torch
from torch import nn

import flashover

x = torch.randn(3, 4)


def kernels_of(call):
    before = flashover.compile_stats()
    result = call()
    after = flashover.compile_stats()
    return result, {k: after[k] - before[k] for k in after}


inner = torch.compile(lambda x: x * 2, backend="eager")
result, made = kernels_of(lambda: flashover.compile(lambda x: inner(x) + 1, fullgraph=True)(x))
assert torch.equal(result, x * 2 + 1)
assert made["graphs"] == 1

linear = nn.Linear(4, 4)
module = torch.compile(linear, backend="eager")
result, made = kernels_of(lambda: flashover.compile(nn.Sequential(module, nn.ReLU()), fullgraph=True)(x))
assert torch.allclose(result, linear(x).relu(), atol=1e-6)
assert made["graphs"] == 1

in_place = nn.Linear(4, 4)
in_place.compile(backend="eager")
result, made = kernels_of(lambda: flashover.compile(nn.Sequential(in_place), fullgraph=True)(x))
assert torch.allclose(result, torch.nn.functional.linear(x, in_place.weight, in_place.bias), atol=1e-6)
assert made["graphs"] == 1

again = flashover.compile(module)
assert again._orig_mod is linear
result, made = kernels_of(lambda: again(x))
assert torch.allclose(result, linear(x), atol=1e-6)
assert made["graphs"] == 1
assert made["eager_calls"] == 0
result, made = kernels_of(lambda: flashover.compile(inner)(x))
assert torch.equal(result, x * 2)
assert made["graphs"] == 1


def prints(x):
    print(end="")
    return x * 2


whole = torch.compile(prints, backend="eager", fullgraph=True)
try:
    flashover.compile(lambda x: whole(x) + 1)(x)
    raise AssertionError("the break inside of torch.compile(fullgraph=True) was taken")
except flashover.exc.Unsupported as e:
    assert "torch_compile_inside.py" in e.where, e.where
broken = torch.compile(prints, backend="eager")
assert torch.equal(flashover.compile(lambda x: broken(x) + 1)(x), x * 2 + 1)
