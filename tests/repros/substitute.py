"""torch._dynamo.substitute_in_graph and error_on_graph_break mean the same inside of flashover.compile."""

import time

import torch

import flashover


@torch._dynamo.substitute_in_graph(time.perf_counter, skip_signature_check=True)
def _():
    return 5.0


def written(x):
    return x - 1


@torch._dynamo.substitute_in_graph(written)
def of_written(x):
    return written(x) + 2  # in here it is what it is


x = torch.ones(3)
assert torch.equal(flashover.compile(lambda x: x * time.perf_counter(), fullgraph=True)(x), torch.full((3,), 5.0))
assert torch.equal(flashover.compile(lambda x: written(x) * 3, fullgraph=True)(x), torch.full((3,), 6.0))


def forbidden(x):
    with torch._dynamo.error_on_graph_break(True):
        y = x * 2
        print(end="")
    return y


try:
    flashover.compile(forbidden)(x)
    raise AssertionError("error_on_graph_break(True): no error")
except flashover.exc.Unsupported as e:
    assert "substitute.py" in e.where


@torch._dynamo.error_on_graph_break(False)
def allowed(x):
    print(end="")
    return x


assert torch.equal(flashover.compile(lambda x: allowed(x) * 2)(x), x * 2)
with torch._dynamo.error_on_graph_break(True):
    assert torch.equal(flashover.compile(lambda x: allowed(x) * 2)(x), x * 2)
    try:
        flashover.compile(lambda x: (x * 2, print(end=""), x * 3))(x)
        raise AssertionError("error_on_graph_break(True) around the call: no error")
    except flashover.exc.Unsupported:
        pass
