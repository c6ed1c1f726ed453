"""The option retreat: what is slower compiled than as it is written runs eager, after a few calls that are timed both
ways; results, effects and what is said of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty_compiler import SLOW, environment

import flashover
from flashover import exc

CALLS = 40


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHOVER_RETREAT", "1")


@pytest.fixture(autouse=True)
def slow_asinh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(tmp_path, SLOW).items():
        monkeypatch.setenv(name, value)


def cut(x: torch.Tensor) -> torch.Tensor:
    y = torch.asinh(x)
    for _ in range(4):  # what they cost is more than any machine's kernels win
        flashover.graph_break()
        y = -y
    return torch.asinh(y)


def calls(fast: Any, *args: Any, count: int = CALLS) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exc.EagerWarning)
        return [fast(*args) for _ in range(count)]


def decide(fast: Any, *args: Any) -> None:
    """A draw, as busy machines make them, is timed again after 100 calls, and once more after 400."""
    for _ in range(700):
        if not any(e["state"] == "timed" and not e["continues"] for e in fast.entries()):
            break
        calls(fast, *args, count=1)


def state_of(fast: Any) -> str:
    return next(e["state"] for e in fast.entries() if not e["continues"])


def test_what_is_slower_runs_eager_and_says_so() -> None:
    fast, x = flashover.compile(cut), torch.randn(4096)
    with torch.no_grad(), pytest.warns(exc.EagerWarning, match="it is slower compiled: [0-9.]+ ms compiled") as caught:
        for _ in range(CALLS):
            torch.testing.assert_close(fast(x), cut(x))
    warning = caught[0].message
    assert isinstance(warning, exc.EagerWarning)
    assert warning.title == "compiled calls took longer" and warning.docs == "docs/user/reasons.md#slower"
    assert state_of(fast) == "slower" and "it is slower compiled" in str(fast.explain())
    before = fast.stats().eager_calls
    with torch.no_grad():
        fast(x)
    assert fast.stats().eager_calls == before + 1
    assert {r["cause"] for r in fast.explain().eager} >= {"timed", "slower"}


def test_a_backward_is_part_of_the_time() -> None:
    fast, x = flashover.compile(cut), torch.zeros(4096, requires_grad=True)
    for _ in range(CALLS):
        x.grad = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", exc.EagerWarning)
            fast(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.ones(4096))
    assert state_of(fast) == "slower"


def heavy(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = (x * 1.01 + 0.1).abs() * 0.5
    flashover.graph_break()
    return x.relu() * 2


def test_what_is_faster_stays_compiled(one_thread: None) -> None:
    fast, x = flashover.compile(heavy), torch.randn(300, 1000)
    with torch.no_grad():
        for y in calls(fast, x):
            torch.testing.assert_close(y, heavy(x))
        decide(fast, x)
    assert state_of(fast) == "compiled"
    assert fast.stats().eager_calls <= 15  # those that were timed: five a race, two of them won by a machine's mood


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Several wait for one another on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def frame_that_loses() -> Callable[[torch.Tensor], torch.Tensor]:
    """A frame whose breaks lose, which calls a function that wins by itself."""

    def layers(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = (x * 1.01 + 0.1).abs() * 0.5
        return x.relu() * 2

    def outer(x: torch.Tensor) -> torch.Tensor:
        y = layers(x)
        z = y[:4, :1000].reshape(-1)
        for _ in range(8):
            flashover.graph_break()
            z = torch.asinh(z)
        return y + z.sum()

    return outer


def test_what_a_frame_that_lost_calls_stays_compiled(one_thread: None) -> None:
    """One call that a busy machine interrupts may decide a race, for good, so there are three."""
    said: list[dict[str, Any]] = []
    for _ in range(3):
        outer = frame_that_loses()
        fast, x = flashover.compile(outer), torch.randn(100, 1000)
        with torch.no_grad():
            for y in calls(fast, x, count=60):
                torch.testing.assert_close(y, outer(x))
            decide(fast, x)
            for _ in range(200):
                said.append(next(e for e in fast.entries() if not e["continues"]))
                if said[-1]["reason"].endswith("each by itself"):
                    break
                calls(fast, x, count=1)
        if said[-1]["reason"].endswith("each by itself"):
            break
    assert said[-1]["state"] == "slower", said[-1]
    assert said[-1]["reason"].endswith("are compiled, each by itself"), said[-1]
    before = fast.stats().kernels
    with torch.no_grad():
        torch.testing.assert_close(fast(x), outer(x))
    assert fast.stats().kernels == before


def test_effects_happen_once_in_each_call() -> None:
    seen: list[int] = []

    def f(x: torch.Tensor, counts: dict[str, int]) -> torch.Tensor:
        counts["n"] = counts.get("n", 0) + 1
        x.add_(1)
        seen.append(1)
        return cut(x)

    fast, x, counts = flashover.compile(f), torch.zeros(4096), {}
    with torch.no_grad():
        results = calls(fast, x, counts)
    assert len(seen) == CALLS and counts == {"n": CALLS}
    assert torch.equal(x, torch.full((4096,), float(CALLS)))
    torch.testing.assert_close(results[-1], cut(x))
    assert fast.stats().eager_calls > 0


def test_random_numbers_are_eagers_all_the_way() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return cut(x + torch.rand(4096)) * torch.rand(4096)

    fast, x = flashover.compile(f), torch.ones(4096)
    with torch.no_grad():
        torch.manual_seed(3)
        got = calls(fast, x)
        torch.manual_seed(3)
        for y in got:
            torch.testing.assert_close(y, f(x))


def test_each_version_has_a_race_of_its_own() -> None:
    def f(x: torch.Tensor, slow: bool) -> torch.Tensor:
        return cut(x) if slow else heavy(x)

    fast, x = flashover.compile(f), torch.randn(300, 1000)
    with torch.no_grad():
        calls(fast, x[0], True)
        calls(fast, x, False)
        decide(fast, x, False)
    states = {e["state"] for e in fast.entries() if not e["continues"]}
    assert states == {"slower", "compiled"}


def test_another_kind_of_call_is_compiled_after_a_while() -> None:
    def f(x: torch.Tensor, slow: bool) -> torch.Tensor:
        return cut(x) if slow else heavy(x)

    fast, x = flashover.compile(f), torch.randn(300, 1000)
    with torch.no_grad():
        calls(fast, x[0], True)
        assert state_of(fast) == "slower"
        for y in calls(fast, x, False, count=17):
            torch.testing.assert_close(y, heavy(x))
    assert {"timed", "compiled"} & {e["state"] for e in fast.entries() if not e["continues"]}


OTHERWISE: dict[str, Callable[[], Any]] = {
    "never": lambda: flashover.compile(cut, options={"retreat": "never"}),
    "capture only": lambda: flashover.compile(cut, backend="eager"),
    "one graph": lambda: flashover.compile(lambda x: x + 1),
    "fullgraph": lambda: flashover.compile(lambda x: x + 1, fullgraph=True, options={"retreat": "always"}),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_not_timed(name: str) -> None:
    fast = OTHERWISE[name]()
    with torch.no_grad():
        calls(fast, torch.ones(4))
    assert state_of(fast) == "compiled" and fast.stats().eager_calls == 0


def test_not_where_results_are_to_be_reproduced() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        fast = flashover.compile(cut)
        with torch.no_grad():
            calls(fast, torch.ones(4))
    finally:
        torch.use_deterministic_algorithms(False)
    assert state_of(fast) == "compiled"


def test_whole_graphs_when_asked_for() -> None:
    fast = flashover.compile(heavy, options={"retreat": "always"})
    with torch.no_grad():
        calls(fast, torch.randn(300, 1000), count=3)
    assert state_of(fast) == "timed"


def test_calls_within_calls_are_not_compared() -> None:
    def f(x: torch.Tensor, depth: int) -> torch.Tensor:
        flashover.graph_break()
        return fast(x + 1, depth - 1) if depth else x

    fast = flashover.compile(f)
    with torch.no_grad():
        for _ in range(CALLS):
            assert calls(fast, torch.zeros(2), 3, count=1)[0].tolist() == [3.0, 3.0]


def test_a_word_that_is_none_of_its_values() -> None:
    with pytest.raises(exc.InvalidOptions, match=r"did you mean 'never'.*breaks, always, never"):
        flashover.compile(cut, options={"retreat": "newer"})
