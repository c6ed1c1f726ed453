"""Random numbers of compiled programs on the CPU are eager's, and the generator goes on from where eager leaves it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import flashover
from flashover import _C

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.uint8, torch.float64, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bernoulli(dtype: torch.dtype) -> None:
    for p in (0.0, 0.1, 0.5, 0.9, 1.0 / 3, 1.0):
        for before, n in ((0, 1), (1, 5), (3, 311), (2, 312), (0, 313), (5, 2000), (0, 0), (1, 624)):
            found = []
            for draw in (torch.ops.flashover.bernoulli, torch.ops.aten.bernoulli.p):
                torch.manual_seed(11)
                torch.randint(2**31, (before,))  # one word each
                x = torch.empty(n, dtype=dtype)
                found.append((draw(x, p), draw(x, p), torch.get_rng_state()))
            for got, want in zip(*found, strict=True):
                assert got.dtype == want.dtype and torch.equal(got, want), (p, before, n)


def test_bernoulli_rejects_what_eager_rejects() -> None:
    for p in (-0.1, 1.5, float("nan")):
        with pytest.raises(RuntimeError):
            torch.ops.flashover.bernoulli(torch.empty(3), p)


def test_dropout() -> None:
    def f(x: Any) -> Any:
        return F.dropout(F.dropout(x, 0.1).sin(), 0.3), torch.rand(3)

    fast = flashover.compile(f, fullgraph=True)
    x = torch.randn(7, 91)
    for seed in range(3):
        torch.manual_seed(seed)
        got = *fast(x), torch.get_rng_state()
        torch.manual_seed(seed)
        want = *f(x), torch.get_rng_state()
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)
    leaf = x.clone().requires_grad_()
    text = flashover.explain(f)(leaf).text()
    if not _C.missing_feature("avx512"):
        assert "flashover.bernoulli" in text
