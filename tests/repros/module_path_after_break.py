"""After a graph break too the module of a step is its path ('self.blocks.1'), not the name of a local variable."""

import torch

import flashover


class A(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
            print(end="")
            x = x.relu()
        return x


with torch.no_grad():
    report = flashover.explain(A())(torch.ones(2, 4))
modules = [s["module"] for g in report.graphs for s in g["steps"]]
assert len(modules) >= 4, modules
assert all(m == "self" or m.startswith("self.blocks.") for m in modules), modules
