"""A custom operator that is named for the first time inside of the compiled function is part of the graph."""

import torch

import flashover

lib = torch.library.Library("firstuse", "DEF")
for name in ("ok", "ok2", "ok3"):
    lib.define(f"{name}(Tensor x) -> Tensor")
    lib.impl(name, lambda x: x + 1, "CPU")
    torch.library.register_fake(f"firstuse::{name}", lambda x: torch.empty_like(x))
x = torch.ones(3)


def f(x):
    return torch.ops.firstuse.ok(x) * 2


c = flashover.compile(f, fullgraph=True)
assert torch.equal(c(x), torch.full((3,), 4.0))
assert torch.equal(c(x), torch.full((3,), 4.0))
assert len(c.entries()) == 1
assert torch.equal(flashover.compile(f, fullgraph=True)(x), torch.full((3,), 4.0))

by_overload = flashover.compile(lambda x: torch.ops.firstuse.ok2.default(x) * 2, fullgraph=True)
assert torch.equal(by_overload(x), torch.full((3,), 4.0))

namespace = flashover.compile(lambda x: getattr(torch.ops, "firstuse").ok3(x) * 2, fullgraph=True)  # noqa: B009
assert torch.equal(namespace(x), torch.full((3,), 4.0))
