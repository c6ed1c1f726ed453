"""einops, whose functions look up what they do in caches of their own: by the class of a tensor and by its shape."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from interpreters import python

import flashover

einops = pytest.importorskip("einops")
PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rearrange": lambda x: einops.rearrange(x, "b c h w -> b (h w) c") * 2,
    "split": lambda x: einops.rearrange(x, "b (g c) h w -> (b g) h w c", g=2).sin(),
    "reduce": lambda x: einops.reduce(x, "b c h w -> b c", "mean") + einops.reduce(x, "b c h w -> b 1", "max"),
    "repeat": lambda x: einops.repeat(x[:, :, 0, 0], "b c -> b n c", n=3) * 2,
    "einsum": lambda x: einops.einsum(x, x, "b c h w, b d h w -> b c d"),
    "pack": lambda x: einops.pack([x.mean((2, 3)), x.amax(3)], "b *")[0],
    "list": lambda x: einops.rearrange([x, x + 1], "n b c h w -> b (n c) h w").cos(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_version_serves_all_sizes(name: str) -> None:
    fast = flashover.compile(PROGRAMS[name], fullgraph=True)
    for n in (2, 3, 4, 5, 7, 1):
        x = torch.randn(n, 4, n + 1, 6)
        torch.testing.assert_close(fast(x), PROGRAMS[name](x))
    assert len(fast.versions) <= 3  # one of the first size, one for all, one where a size is 1


def test_the_first_call_of_a_process_is_whole() -> None:
    code = """
import torch, einops, flashover
fast = flashover.compile(lambda x: einops.rearrange(x, "b c h -> b (c h)") * 2, fullgraph=True)
x = torch.randn(2, 3, 4)
assert torch.equal(fast(x), x.flatten(1) * 2)
assert torch.equal(einops.rearrange(x, "b c h -> (b c) h"), x.flatten(0, 1))
assert torch.equal(fast(x), x.flatten(1) * 2)
print(fast.stats().versions)
"""
    done = python("-c", code)
    assert done.stdout.strip() == "1", done.stdout + done.stderr
