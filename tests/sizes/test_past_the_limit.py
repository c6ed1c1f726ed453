"""When recompile_limit is reached, one more version, for all sizes, serves instead of eager."""

from __future__ import annotations

import warnings

import pytest
import torch

import flashover


def graphs() -> int:
    return flashover.compile_stats()["graphs"]


def eager_calls(fast: object) -> int:
    return fast._callable.tallies()["eager_calls"] if hasattr(fast, "_callable") else fast.tallies()["eager_calls"]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_last_version_is_for_all_sizes(limit: int) -> None:
    fast = flashover.compile(lambda x, y: (x * 2, y + 1), options={"recompile_limit": limit})
    before = graphs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(3, 9):
            for m in range(3, 6):
                x, y = torch.randn(n, m), torch.randn(m, n)
                got = fast(x, y)
                assert torch.equal(got[0], x * 2) and torch.equal(got[1], y + 1)
    assert graphs() - before <= limit + 1
    assert eager_calls(fast) == 0


def test_versions_with_other_questions_of_sizes() -> None:
    """Each version has its bounds: more of them than there may be."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] < 4 else x + 2 if x.shape[0] < 8 else x + 3 if x.shape[0] < 16 else x + 4

    fast = flashover.compile(f, options={"recompile_limit": 2})
    before = graphs()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for n in (3, 5, 9, 17, 2, 6, 10, 18):
            x = torch.randn(n)
            assert torch.equal(fast(x), f(x))
    assert graphs() - before == 3
    assert eager_calls(fast) > 0, "its guards fail: eager, as ever"
    assert [w for w in said if issubclass(w.category, flashover.exc.EagerWarning)]


def test_not_where_sizes_do_not_matter() -> None:
    fast = flashover.compile(lambda x, how: x * len(how), options={"recompile_limit": 2})
    before = graphs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for how in "a", "bb", "ccc", "dddd":
            fast(torch.ones(3), how)
    assert graphs() - before == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(fast(torch.ones(5), "a"), torch.ones(5)), "now they do"
        assert torch.equal(fast(torch.ones(6), "a"), torch.ones(6))
    assert graphs() - before == 3


def test_dynamic_false_stays_eager() -> None:
    fast = flashover.compile(lambda x: x * 2, dynamic=False, options={"recompile_limit": 2})
    before = graphs()
    with pytest.warns(flashover.exc.EagerWarning, match="recompile_limit"):
        for n in range(3, 7):
            fast(torch.randn(n))
    assert graphs() - before == 2


def test_after_a_graph_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        print(end="")
        return x * 2

    fast = flashover.compile(f, options={"recompile_limit": 1})
    before = graphs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(3, 8):
            x = torch.randn(n)
            assert torch.allclose(fast(x), f(x))
    assert graphs() - before == 4


def test_fullgraph_raises_only_when_that_fails() -> None:
    fast = flashover.compile(lambda x: x * 2, fullgraph=True, options={"recompile_limit": 1})
    for n in range(3, 7):
        fast(torch.randn(n))
    with pytest.raises(flashover.exc.RecompileLimitExceeded):
        fast(torch.randn(3).double())
