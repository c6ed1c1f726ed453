"""optimizer.step under a backend of the user's: one graph, which writes parameters that require grad, as torch.compile
runs it."""

import copy

import torch

import flashover

graphs = []


def backend(module, examples):
    graphs.append(module)
    return module.forward


for cls in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
    model = torch.nn.Linear(3, 2)
    other = copy.deepcopy(model)
    steps = []
    for m, how in ((model, lambda step: flashover.compile(step, backend=backend)), (other, lambda step: step)):
        optimizer = cls(m.parameters(), lr=0.01)
        step = how(optimizer.step)
        graphs.clear()
        for _ in range(3):
            m(torch.ones(1, 3)).sum().backward()
            step()
        steps.append(len(graphs))
    assert steps[0] >= 1, steps
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6), cls
        assert p.requires_grad
