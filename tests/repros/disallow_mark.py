"""torch._dynamo.disallow_in_graph of an operator ends the graph at its calls, as flashover.disallow_in_graph does."""

import torch

import flashover

torch._dynamo.disallow_in_graph(torch.sub)


def f(x):
    return torch.add(torch.sub(torch.add(x, 1), 1), 1)


before = flashover.compile_stats()
assert torch.equal(flashover.compile(f)(torch.ones(3)), torch.full((3,), 2.0))
after = flashover.compile_stats()
assert after["graph_breaks"] - before["graph_breaks"] == 1
assert after["graphs"] - before["graphs"] == 2
try:
    flashover.compile(f, fullgraph=True)(torch.ones(3))
    raise AssertionError("the mark was not seen under fullgraph")
except flashover.exc.Unsupported as e:
    assert "sub" in e.reason
