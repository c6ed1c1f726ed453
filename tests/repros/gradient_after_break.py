"""torch.autograd.grad in compiled code after a graph break finds the gradients of parameters that were used before the
break, as eager does: they are not None."""

import torch

import flashover


def gradient(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor | None:
    y = m(x)
    print("", end="")  # the graph breaks here
    loss = y.square().sum()
    return torch.autograd.grad(loss, [m.weight], allow_unused=True)[0]


layer, rows = torch.nn.Linear(4, 2), torch.randn(3, 4)
expected = gradient(layer, rows)
compiled = flashover.compile(gradient)
for _ in range(2):
    got = compiled(layer, rows)
    assert got is not None and expected is not None
    torch.testing.assert_close(got, expected)
