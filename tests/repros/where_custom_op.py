"""exc.Unsupported says where the user's program cannot be captured: file:line, the user's frames, and what to do."""

import torch

import flashover

lib = torch.library.Library("nofake", "DEF")
lib.define("op(Tensor x) -> Tensor")
lib.impl("op", lambda x: x + 1, "CPU")


def helper(x):
    return torch.ops.nofake.op(x) * 2


def f(x):
    y = x + 1
    return helper(y)


try:
    flashover.compile(f, fullgraph=True)(torch.ones(3))
    raise AssertionError("an operator without a fake was captured")
except flashover.exc.Unsupported as e:
    line = helper.__code__.co_firstlineno + 1
    assert e.where == f"{__file__}:{line}", e.where
    assert e.stack[-1] == f"{__file__}:{line} in helper", e.stack
    assert e.stack[-2].endswith(f":{f.__code__.co_firstlineno + 2} in f"), e.stack
    assert any("register_fake" in hint for hint in e.hints), e.hints
    assert "register_fake" in str(e)
explained = flashover.explain(f)(torch.ones(3))
assert next(b["where"] for b in explained.breaks + explained.declines) == f"{__file__}:{line}"
