"""The first calls on a GPU: what is timed beside eager, and what is compiled in the background."""

from __future__ import annotations

import warnings

import pytest
import torch

import flashover
from flashover import exc

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHOVER_RETREAT", "1")


def parts(x: torch.Tensor) -> torch.Tensor:
    for _ in range(8):
        x = (x * 1.01).sin()
    flashover.graph_break()
    return x.cos() + 1


def state_of(fast: object) -> str:
    return next(e["state"] for e in fast.entries() if not e["continues"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [16, 1 << 24])
def test_calls_are_timed_both_ways(size: int) -> None:
    fast, x = flashover.compile(parts), torch.randn(size, device="cuda")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", exc.EagerWarning)
        for _ in range(40):
            torch.testing.assert_close(fast(x), parts(x))
        for _ in range(700):  # a draw rests for 100 calls, a second one for 400
            if state_of(fast) != "timed":
                break
            fast(x)
    assert state_of(fast) in ("compiled", "slower")
    if size > 1 << 20:  # fused kernels move a fraction of the bytes
        assert state_of(fast) == "compiled"


def test_training_is_timed() -> None:
    fast, x = flashover.compile(parts), torch.randn(1 << 22, device="cuda", requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exc.EagerWarning)
        for _ in range(700):
            x.grad = None
            fast(x).sum().backward()
            if state_of(fast) != "timed":
                break
    assert state_of(fast) in ("compiled", "slower")


def test_nothing_is_waited_for_while_a_graph_is_recorded() -> None:
    fast, x = flashover.compile(parts), torch.randn(1024, device="cuda")
    with torch.no_grad():
        fast(x)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                fast(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = fast(x)
        graph.replay()
        torch.testing.assert_close(y, parts(x))


def test_the_background_compiles_for_a_gpu() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin().softmax(-1)

    fast, x = (
        flashover.compile(f, options={"compile": "background", "cache": False}),
        torch.randn(64, 64, device="cuda"),
    )
    assert torch.equal(fast(x), f(x))
    assert flashover.wait_until_compiled(100)
    torch.testing.assert_close(fast(x), f(x))
    assert state_of(fast) == "compiled" and fast.stats().eager_calls == 1
