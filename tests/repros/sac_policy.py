"""A selective-checkpoint policy is asked while compiling and obeyed: what it says to save is saved (the saved bytes
show it) and not computed again; in each of its forms gradients are eager's."""

import functools

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import flashover

torch.manual_seed(0)
first, second = nn.Linear(64, 256), nn.Linear(256, 64)
PRODUCTS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
GRADIENTS = 4  # products that the backward needs in any case: of the input and the weight of both layers
asked = []


def block(t):
    return second(torch.tanh(first(t)))


def by(answer, otherwise):
    def policy(ctx, op, *args, **kwargs):
        assert not ctx.is_recompute or not torch.compiler.is_compiling()
        asked.append(str(op))
        return answer if op in PRODUCTS else otherwise

    return policy


def run(policy):
    def selected(x):
        context = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(block, x, use_reentrant=False, context_fn=context).sin()

    x = torch.randn(512, 64, requires_grad=True)
    asked.clear()
    plan = flashover.explain(selected)(x)
    assert not plan.breaks, plan.breaks
    # Whoever computes them here: the library, or kernels of our own.
    products = {"aten.addmm.default", "aten.mm.default", "flashover.product.default", "flashover.product.out"}
    again = sum(e["name"] in products for e in plan.externs if e["side"] == "backward") - GRADIENTS
    wanted = torch.autograd.grad(selected(x).sum(), [x, *first.parameters(), *second.parameters()])
    got = torch.autograd.grad(flashover.compile(selected)(x).sum(), [x, *first.parameters(), *second.parameters()])
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    return again, sum(e["saved_bytes"] for e in plan.graphs)


P = CheckpointPolicy
plain, least = run(by(P.PREFER_RECOMPUTE, P.PREFER_RECOMPUTE))
assert asked and plain > 0, (asked, plain)
hidden = 512 * 256 * 4
for policy in (by(P.MUST_SAVE, P.PREFER_RECOMPUTE), by(P.PREFER_SAVE, P.MUST_RECOMPUTE), by(True, False), PRODUCTS):
    again, saved = run(policy)
    assert again == 0, (policy, again)
    assert saved >= least + hidden, (policy, saved, least)
again, saved = run(by(P.MUST_RECOMPUTE, P.MUST_RECOMPUTE))
assert again == plain and saved == least
