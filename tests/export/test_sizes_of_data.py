"""Programs whose results have sizes that follow from data: exported, saved, packaged."""

from __future__ import annotations

import io
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import flashover


class Masked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0] * 2


class Numbers(nn.Module):
    """An index list, a size that is a number in a tensor, and an operator that finds one."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows, n = (x > 0).nonzero()[:, 0], int(y.sum())
        torch._check(n >= 2)
        return x[rows].sum(0), torch.ones(n).cumsum(0) * x.sum(), torch.unique(y)


CASES: list[tuple[nn.Module, tuple[Tensor, ...], tuple[Tensor, ...]]] = [
    (Masked(), (torch.randn(4, 8),), (torch.randn(7, 8),)),
    (Numbers(), (torch.randn(6, 8), torch.tensor([1, 2, 3])), (torch.randn(9, 8), torch.tensor([4, 4, 1, 7]))),
]


def exported(module: nn.Module, args: tuple[Tensor, ...]) -> Any:
    return flashover.export(module, args, dynamic_shapes=[{0: Dim(f"n{i}")} for i in range(len(args))])


def check(f: Callable[..., Any], module: nn.Module, *calls: tuple[Tensor, ...]) -> None:
    for call in calls:
        torch.testing.assert_close(f(*call), module(*call))


@pytest.mark.parametrize(("module", "args", "others"), CASES)
def test_a_program(module: nn.Module, args: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> None:
    program = exported(module, args)
    assert any(str(symbol).startswith("u") for symbol in program.range_constraints)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for p in (program, program.run_decompositions(), torch.export.load(file)):
        check(p.module(), module, args, others)


@pytest.mark.parametrize(("module", "args", "others"), CASES)
def test_a_package(module: nn.Module, args: tuple[Tensor, ...], others: tuple[Tensor, ...], tmp_path: Path) -> None:
    flashover.package(exported(module, args), tmp_path / "p.flash", prepare=False)
    check(flashover.load(tmp_path / "p.flash"), module, args, others)


def test_a_package_of_a_program_of_torchs(tmp_path: Path) -> None:
    """(Its export fails for the other case.)"""
    module, args, others = CASES[0]
    program = torch.export.export(module, args, dynamic_shapes=({0: Dim("n")},))
    flashover.package(program, tmp_path / "p.flash", prepare=False)
    check(flashover.load(tmp_path / "p.flash"), module, args, others)


def test_what_the_program_checks_is_checked(tmp_path: Path) -> None:
    module, args, _ = CASES[1]
    program = exported(module, args)
    flashover.package(program, tmp_path / "p.flash", prepare=False)
    for f in (program.module(), flashover.load(tmp_path / "p.flash")):
        with pytest.raises(RuntimeError, match=r"2 <= u\d"):
            f(torch.randn(3, 8), torch.tensor([1, 0]))


def test_the_runner(tmp_path: Path) -> None:
    module, (x,), (other,) = CASES[0]
    runner = Path(flashover.__file__).parent / "runtime" / "bin" / "flashover-run"
    if not runner.exists():
        pytest.skip("the runtime is not built")
    flashover.package(exported(module, (x,)), tmp_path / "p.flash", prepare=False)
    np.save(tmp_path / "x.npy", other.numpy())
    command = [runner, tmp_path / "p.flash", tmp_path / "x.npy", "--out", str(tmp_path / "y")]
    subprocess.run(command, check=True, timeout=100)
    np.testing.assert_allclose(np.load(tmp_path / "y0.npy"), module(other).numpy(), rtol=1e-6)


def scaled(x: Tensor) -> Tensor:
    return x * x.max().item()


def computed(x: Tensor) -> Tensor:
    most = x.max().item()
    return x * (most * 2 + 1) - math.sqrt(abs(most))


def of_sizes(x: Tensor) -> Tensor:
    return x / x.shape[0] ** 0.5 + math.log(x.shape[0]) - 1 / x.shape[0]


def of_whole_numbers(x: Tensor) -> Tensor:
    return (x * 4).long() * (x.shape[0] / 2)


@pytest.mark.parametrize("f", [scaled, computed, of_sizes, of_whole_numbers])
def test_numbers_are_part_of_the_graph(f: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    program = flashover.export(f, (torch.randn(5, 4),), dynamic_shapes=[{0: Dim("n")}])
    flashover.package(program, tmp_path / "p.flash", prepare=False)
    for call in (program.module(), flashover.load(tmp_path / "p.flash")):
        for rows in (5, 2, 33):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(call(x), f(x))


def test_a_size_that_an_argument_holds(tmp_path: Path) -> None:
    def f(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        count = n.item()
        torch._check(count >= 0)
        torch._check(count <= 5)
        return x[:count].sum(0), torch.arange(count) * 2

    program = flashover.export(f, (torch.randn(5, 4), torch.tensor(2)))
    flashover.package(program, tmp_path / "p.flash", prepare=False)
    for call in (program.module(), flashover.load(tmp_path / "p.flash")):
        for count in (2, 4, 1):
            args = torch.randn(5, 4), torch.tensor(count)
            torch.testing.assert_close(call(*args), f(*args))
        with pytest.raises(RuntimeError):
            call(torch.randn(5, 4), torch.tensor(7))
