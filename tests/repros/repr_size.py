"""repr() of an explanation is one line, str() is a summary; text() is all of it."""

import torch
from torch import nn

import flashover

report = flashover.explain(nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)]).eval(), backend="eager")(
    torch.ones(2, 4)
)
assert len(repr(report)) < 200
assert "\n" not in repr(report)
assert "Sequential" in repr(report)
assert "1 graphs" in repr(report)
assert str(report).count("\n") < 40
assert len(report.text()) > 2000
