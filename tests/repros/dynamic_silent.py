"""With dynamic=True sizes do not compile anew, or a warning says that they do."""

import warnings

import torch

import flashover

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    f = flashover.compile(lambda x: x * 2, dynamic=True)
    for n in range(2, 8):
        f(torch.ones(n))
assert flashover.compile_stats()["recompiles"] <= 2 or any("dynamic" in str(w.message) for w in said)
