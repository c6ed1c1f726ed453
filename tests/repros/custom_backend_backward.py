"""A backend made by aot_autograd(fw_compiler, bw_compiler) gets the forward and the backward graph, as torch.compile's
does, and what both return is what runs."""

import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

import flashover

seen, ran = [], []


def compiler(name):
    def compile_graph(module, examples):
        assert isinstance(module, torch.fx.GraphModule)
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        assert len(placeholders) == len(examples)
        seen.append(name)

        def run(*inputs):
            ran.append(name)
            return module(*inputs)

        return make_boxed_func(run)

    return compile_graph


backend = aot_autograd(fw_compiler=compiler("fw"), bw_compiler=compiler("bw"))
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.LayerNorm(2))
x = torch.randn(5, 4, requires_grad=True)
compiled = flashover.compile(model, backend=backend)
for _ in range(2):
    compiled(x).square().sum().backward()
    got = [x.grad.clone(), *(p.grad.clone() for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    model(x).square().sum().backward()
    wanted = [x.grad.clone(), *(p.grad.clone() for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    for g, w in zip(got, wanted, strict=True):
        assert torch.allclose(g, w, atol=1e-5), (g, w)
assert seen == ["fw", "bw"], seen
assert ran == ["fw", "bw"] * 2, ran


# What is trained and what is only handed through, an input that is written, a result that nothing leads from.
def step(a, b, state):
    state.add_(1)
    return (a * b).sin(), a.detach() * 2, state * 1


a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
state, other = torch.zeros(3), torch.zeros(3)
got = flashover.compile(step, backend=backend)(a, b, state)
wanted = step(a, b, other)
for g, w in zip(got, wanted, strict=True):
    assert torch.allclose(g, w)
    assert g.requires_grad == w.requires_grad
assert torch.equal(state, other)
for g, w in zip(torch.autograd.grad(got[0].sum(), [a, b]), torch.autograd.grad(wanted[0].sum(), [a, b]), strict=True):
    assert torch.allclose(g, w)
