"""One break in a function two calls deep: one graph before it, one for all that follows in
its frame and its callers'."""
# open: docs/limits.md

import torch

import flashover


def h(x):
    y = x * 2
    print(end="")
    return y + 1


def g(x):
    return h(x.sin()).cos()


def f(x):
    return g(x * 3) * 4


before = flashover.compile_stats()["graphs"]
torch.testing.assert_close(flashover.compile(f)(torch.ones(3)), f(torch.ones(3)))
graphs = flashover.compile_stats()["graphs"] - before
assert graphs == 2, graphs
