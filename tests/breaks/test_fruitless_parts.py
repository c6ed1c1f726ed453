"""Calls of libraries that break the graph some hundred times and compute nothing: they are left to CPython soon."""

from __future__ import annotations

import os
from typing import Any

import torch

import flashover


class Column:
    """What a library keeps of a file: no tensor is near it."""

    def __init__(self, n: int) -> None:
        self.n = n

    def read(self) -> int:
        total = 0
        for i in range(self.n):
            total += i
            os.getpid()
        return total


def deep(columns: list[Column]) -> int:
    return sum([c.read() for c in columns])


def scaled(x: torch.Tensor, by: int) -> torch.Tensor:
    y = x * by
    os.getpid()
    return y.sin() + 1


def breaks() -> int:
    return int(flashover.compile_stats()["graph_breaks"])


def program(columns: list[Column], x: torch.Tensor) -> Any:
    total = deep(columns)
    return scaled(x, total), total


def test_frames_without_tensors_are_left_to_cpython() -> None:
    columns, x = [Column(20) for _ in range(10)], torch.randn(4)
    compiled = flashover.compile(program)
    before = breaks()
    for _ in range(2):
        y, total = compiled(columns, x)
        assert total == 1900
        torch.testing.assert_close(y, program(columns, x)[0])
    assert breaks() - before < 40


def test_those_with_tensors_are_compiled_all_the_same() -> None:
    columns, x = [Column(20) for _ in range(10)], torch.randn(4)
    compiled = flashover.compile(program)
    compiled(columns, x)

    kernels = flashover.compile_stats()["kernels"]
    x = torch.randn(4)
    torch.testing.assert_close(compiled(columns, x)[0], program(columns, x)[0])
    assert flashover.compile_stats()["kernels"] == kernels > 0
