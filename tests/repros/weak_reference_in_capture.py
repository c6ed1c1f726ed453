# open: docs/limits.md
"""An object that the program drops is gone for its weak references, also in the call that is captured."""

import weakref

import torch

import flashover


class Thing:
    pass


things = [Thing(), Thing()]
alive = weakref.WeakValueDictionary(enumerate(things))


@flashover.compile
def drop(x: torch.Tensor) -> torch.Tensor:
    things.pop()
    return x * len(alive)


assert torch.equal(drop(torch.ones(2)), torch.ones(2))
