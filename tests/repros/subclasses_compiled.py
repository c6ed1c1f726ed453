"""Functions of tensor subclasses are compiled: plain ones, those with __torch_function__, TwoTensor, jagged nested
tensors."""

from _subclasses import VALUES, f

import flashover

eager = []
for name, v in VALUES.items():
    before = flashover.compile_stats()["frames"]
    flashover.compile(f)(v)
    if flashover.compile_stats()["frames"] == before:
        eager.append(name)
assert not eager, f"run eager: {eager}"
