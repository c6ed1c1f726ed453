"""Operators that return something else than their meta function said: the call is eager, and nothing happens twice."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import flashover


@pytest.fixture(scope="module")
def liar() -> Iterator[None]:
    with torch.library._scoped_library("fotest", "FRAGMENT") as library:
        library.define("liar(Tensor x) -> Tensor")
        library.impl("liar", lambda x: x.double() + 1, "CPU")
        library.impl("liar", torch.empty_like, "Meta")
        library.define("moody(Tensor x) -> Tensor")
        library.impl("moody", lambda x: x.double() if x.flatten()[0] > 0 else x + 1, "CPU")
        library.impl("moody", torch.empty_like, "Meta")
        yield


def write_then_lie(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    noise = torch.rand(3)
    return torch.ops.fotest.liar(torch.relu(x) * 2) + noise


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("liar")
def test_the_first_call_is_taken_back() -> None:
    compiled = flashover.compile(write_then_lie)
    a, b = torch.zeros(3), torch.zeros(3)
    with torch.no_grad():
        torch.manual_seed(1)
        expected = write_then_lie(a)
        torch.manual_seed(1)
        with pytest.warns(RuntimeWarning, match="fotest.liar"):
            got = compiled(b)
        assert got.dtype == torch.float64
        assert torch.equal(got, expected) and torch.equal(a, b)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert compiled(b).dtype == torch.float64
    assert torch.equal(b, torch.full((3,), 2.0))


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("liar")
def test_a_later_call() -> None:
    def reads(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.fotest.moody(x * 2) + 1

    def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.ops.aten.index_put_(y, [torch.tensor([0])], torch.tensor(7.0))
        return torch.ops.fotest.moody(x * 2) + y.sum()

    with torch.no_grad():
        compiled = flashover.compile(reads)
        assert compiled(-torch.ones(3)).dtype == torch.float32
        with pytest.warns(RuntimeWarning, match="fotest.moody"):
            assert compiled(torch.ones(3)).dtype == torch.float64
        y = torch.zeros(3)
        compiled = flashover.compile(writes)
        assert compiled(-torch.ones(3), y).dtype == torch.float32
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert compiled(torch.ones(3), y).dtype == torch.float64
        except RuntimeError as error:
            assert "written already" in str(error)
        assert y[0] == 7
