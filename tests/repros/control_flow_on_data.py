"""torch.cond whose branches draw random numbers, and while_loop whose end is data, are part of the graph."""
# open: docs/limits.md

import torch
from torch._higher_order_ops import while_loop

import flashover

x = torch.linspace(0.1, 1, 4)


def draws(x):
    return torch.cond(x.sum() > 0, lambda t: t + torch.rand(4), lambda t: t.cos(), (x,))


def loops(x):
    return while_loop(lambda i, t: t.sum() < 50, lambda i, t: (i + 1, t * 2 + 1), (torch.tensor(0), x))


for f in (draws, loops):
    torch.manual_seed(0)
    wanted = f(x)
    torch.manual_seed(0)
    got = flashover.compile(f, fullgraph=True)(x)
    for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(wanted), strict=True):
        torch.testing.assert_close(a, b)
