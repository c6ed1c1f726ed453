"""torch's own fake tensors beside trace tensors: later versions write theirs in C++, with the same dispatch key."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import flashover

pytestmark = pytest.mark.filterwarnings("ignore::flashover.exc.EagerWarning")


def program(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.t()).relu().sum(1)


def test_a_fake_mode_around_the_call() -> None:
    fast, x = flashover.compile(program), torch.randn(3, 5)
    for _ in range(2):
        torch.testing.assert_close(fast(x), program(x))
        with FakeTensorMode() as mode:
            y = fast(mode.from_tensor(x))
            made = fast(torch.ones(4, 2))
        assert isinstance(y, FakeTensor) and y.shape == (3,)
        assert isinstance(made, FakeTensor) and made.shape == (4,)


def test_fake_tensors_as_arguments() -> None:
    fast, mode = flashover.compile(program), FakeTensorMode()
    y = fast(mode.from_tensor(torch.randn(3, 5)))
    assert isinstance(y, FakeTensor) and y.shape == (3,)


def test_a_fake_mode_inside_the_program() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        with FakeTensorMode() as mode:
            size = program(mode.from_tensor(x)).shape[0]
        return y.sum() + size

    fast, x = flashover.compile(f), torch.randn(3, 5)
    for _ in range(2):
        torch.testing.assert_close(fast(x), f(x))


def test_trace_tensors_are_gone_after_the_call() -> None:
    seen = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        seen.append(y)
        return y * 2

    x = torch.ones(2)
    flashover.compile(f)(x)
    assert seen[0].tolist() == [2.0, 2.0] and type(seen[0]) is torch.Tensor
