"""torch._dynamo.config.reorderable_logging_functions: such a function is called behind the graph, with the values that
eager would show, on each call; a tensor that is written after it was shown ends the graph before."""

import contextlib
import io

import torch

import flashover

torch._dynamo.config.reorderable_logging_functions.add(print)


def f(x):
    y = x * 2
    print("val", y, 3)
    return y + 1


def written(x):
    y = x * 2
    print("val", y)
    y.add_(1)
    return y


for fn, breaks in ((f, 0), (written, 1)):
    c = flashover.compile(fn)
    before = flashover.compile_stats()["graph_breaks"]
    for i in range(3):
        x = torch.full((2,), float(i))
        outputs = []
        for g in (fn, c):
            with contextlib.redirect_stdout(io.StringIO()) as said:
                result = g(x)
            outputs.append((said.getvalue(), result.tolist()))
        assert outputs[0] == outputs[1], outputs
    assert flashover.compile_stats()["graph_breaks"] - before == breaks, fn.__name__
