"""fullgraph=True names the line, the user's whole call stack and what to do."""

import torch

import flashover


def inner(x):
    if x.sum() > 0:
        return x
    return -x


def outer(x):
    return inner(x * 2)


@flashover.compile(fullgraph=True)
def mine(x):
    a = outer(x)
    return a + outer(x + 1)


try:
    mine(torch.ones(3))
    raise AssertionError("a branch on data was captured")
except flashover.exc.Unsupported as e:
    assert e.where == f"{__file__}:{inner.__code__.co_firstlineno + 1}", e.where
    assert [frame.rpartition(" in ")[2] for frame in e.stack[-3:]] == ["mine", "outer", "inner"], e.stack
    assert e.hints
    assert all(frame in str(e) for frame in e.stack[-3:-1])
