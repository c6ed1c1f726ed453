# open: docs/limits.md
"""Programs that give sizes, or whose numbers change, can be packaged."""

import torch

import flashover

problems = []


def holds(name, program, *args, **shapes):
    try:
        flashover.export(program, args, **shapes)
    except flashover.exc.ExportError as error:
        problems.append(f"{name}: {error}")


holds("a size", lambda x: (x * 2, x.shape[0]), torch.ones(3), dynamic_shapes=[{0: flashover.Dim("n")}])
holds("a number", lambda x, n: x * n.item(), torch.ones(3), torch.tensor(2.0))
assert not problems, "\n".join(problems)
