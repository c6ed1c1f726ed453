"""Control flow operators are part of the graph: torch.cond with a gradient (also where the other branch's is NaN),
scan and map of 200 steps."""

import torch
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import scan

import flashover


def whole(f, *inputs):
    compiled = flashover.compile(f, fullgraph=True)
    for _ in range(2):
        mine = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        its = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        wanted, got = f(*mine), compiled(*its)
        for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(wanted), strict=True):
            torch.testing.assert_close(a, b)
            assert a.requires_grad == b.requires_grad
            if a.requires_grad:
                a.sum().backward(retain_graph=True)
                b.sum().backward(retain_graph=True)
        for a, b in zip(mine, its, strict=True):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                torch.testing.assert_close(b.grad, a.grad)


x = torch.linspace(0.1, 1, 4)


def branch(x):
    return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,)).sum()


def other_is_nan(x):
    return torch.cond(x.min() > 0, lambda t: t.sqrt().log(), lambda t: t * 2, (x,))


whole(branch, x.clone().requires_grad_())
whole(branch, (-x).requires_grad_())
whole(branch, x)
whole(other_is_nan, x.clone().requires_grad_())
whole(other_is_nan, (x - 0.1).requires_grad_())
whole(other_is_nan, (x - 0.5).requires_grad_())
whole(lambda x: scan(lambda c, v: (c * 0.9 + v, c * v), torch.zeros(()), x), torch.linspace(0, 1, 200))
whole(lambda x, y: map_rows(lambda v, y: v * y.sum(), x, y), torch.linspace(0, 1, 200), x)
