"""The error of fullgraph=True says what cannot be captured, where, what that means and what helps, as text and in
fields; it can be pickled."""

import pickle

import torch

import flashover


def inner(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x * 2
    return x


def outer(x: torch.Tensor) -> torch.Tensor:
    return inner(x + 1)


try:
    flashover.compile(outer, fullgraph=True)(torch.ones(3))
except flashover.exc.Unsupported as e:
    error = e
for e in (error, pickle.loads(pickle.dumps(error))):
    assert isinstance(e, RuntimeError)
    assert e.where.endswith("exception_fields.py:12"), e.where
    assert e.reason
    assert "value of a tensor" in e.explanation
    assert any("torch.where" in hint for hint in e.hints)
    assert any("outer" in frame for frame in e.stack), e.stack
    text = str(e)
    for part in (e.reason, e.where, "if x.sum() > 0:", e.explanation, *e.hints, e.docs, "called from"):
        assert part in text, (part, text)
