"""torch.set_default_device and `with torch.device(...)`: compiled through, guarded, right on a change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import flashover


@pytest.fixture(autouse=True)
def _no_default_device() -> Iterator[None]:
    yield
    torch.set_default_device(None)


def add(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(4) * torch.tensor([1.0, 2, 3, 4]) + torch.zeros_like(x)


def test_is_compiled_and_guarded() -> None:
    fast = flashover.compile(add, fullgraph=True)
    x = torch.ones(4)
    with torch.no_grad():
        before = flashover.compile_stats()
        torch.set_default_device("cpu")
        assert torch.equal(fast(x), add(x))
        assert flashover.compile_stats()["graphs"] == before["graphs"] + 1
        torch.set_default_device(None)
        assert torch.equal(fast(x), add(x))
        assert flashover.compile_stats()["recompiles"] == before["recompiles"] + 1
        torch.set_default_device("cpu")
        assert torch.equal(fast(x), add(x))
        assert flashover.compile_stats()["graphs"] == before["graphs"] + 2


def test_sizes_stay_symbols() -> None:
    """All of torch's functions go through a Python function then, which hands the sizes on."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Size, int]:
        rows, columns = x.shape
        y = torch.arange(rows) + x.view(x.size(0), -1).sum(1) + x.numel() + len(x)
        return y + torch.ones(x.size()[:1]) * x.stride(0) + columns, x.size(), x.shape[1]

    fast = flashover.compile(fn, fullgraph=True, dynamic=True)
    torch.set_default_device("cpu")
    before = flashover.compile_stats()["graphs"]
    for rows in (5, 3, 8, 1):
        x = torch.randn(rows, 4)
        got, want = fast(x), fn(x)
        torch.testing.assert_close(got[0], want[0])
        assert got[1:] == want[1:] and type(got[1]) is torch.Size
    assert flashover.compile_stats()["graphs"] == before + 1


def test_items_of_old_tensors_are_written() -> None:
    """The mode gets Tensor.__setitem__ as a function to call."""

    def fn(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rows[1 : 1 + len(x)] = x.sin()
        rows[0] = 3
        return rows.sum(0)

    fast = flashover.compile(fn, fullgraph=True, dynamic=True)
    torch.set_default_device("cpu")
    for n in (3, 5, 2):
        x, rows = torch.randn(n, 4), torch.zeros(9, 4)
        want = fn(other := rows.clone(), x)
        torch.testing.assert_close(fast(rows, x), want)
        torch.testing.assert_close(rows, other)


def test_breaks_at_data_come_once() -> None:
    """The break was put before what makes the size, and what follows made it again: a compile in every few calls."""

    def fn(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = x[mask]
        return found.sum(0) + 1 if found.shape[0] > 3 else found.sum(0) - 1

    fast = flashover.compile(fn)
    torch.set_default_device("cpu")
    before = flashover.compile_stats()["graph_breaks"]
    for i in range(40):
        x, mask = torch.randn(12, 4), torch.arange(12) < (2 if i % 2 else 9)
        torch.testing.assert_close(fast(x, mask), fn(x, mask))
    assert flashover.compile_stats()["graph_breaks"] == before + 1


def test_inside() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.device("cpu"):
            y = torch.ones(4)
        return x + y

    with torch.no_grad():
        assert torch.equal(flashover.compile(fn, fullgraph=True)(torch.ones(4)), torch.full((4,), 2.0))
    assert torch._C._len_torch_function_stack() == 0


def test_other_modes_run_eager() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            Mode.calls += 1
            return func(*args, **(kwargs or {}))

    fast = flashover.compile(add)
    with torch.no_grad(), Mode():
        fast(torch.ones(4))
    assert Mode.calls > 0


def test_a_capture_that_ends_inside_of_the_mode() -> None:
    """The mode is taken off its stack while it is called, also by Python code that a capture gives up in."""

    class Layer:
        def __init__(self) -> None:
            self.weight = torch.empty(3, 2)
            self.reset()

        def reset(self) -> None:
            torch.nn.init.kaiming_uniform_(self.weight)

    def f() -> tuple[torch.device, torch.device]:
        with torch.device("meta"):
            layer = Layer()
        return layer.weight.device, torch.empty(1).device

    fast = flashover.compile(f)
    for _ in range(2):
        assert fast() == f()
