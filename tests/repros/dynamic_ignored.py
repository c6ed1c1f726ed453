"""dynamic=True, torch._dynamo.mark_dynamic and sizes that were seen to change lead to code for any size: twelve sizes
take a few compilations, and none of their calls runs eager."""

import warnings

import torch

import flashover

warnings.simplefilter("ignore")


def f(x):
    return (x * 2).softmax(-1)


def count(c, mark):
    for k in range(2, 14):
        x = torch.randn(k, 8)
        if mark:
            torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(c(x), f(x))
    return len(c.entries()), c.tallies()["eager_calls"]


for c, mark in (
    (flashover.compile(f), False),
    (flashover.compile(f, dynamic=True), False),
    (flashover.compile(f), True),
):
    compiled, eager = count(c, mark)
    assert compiled <= 4 and eager == 0, (compiled, eager)
