"""Triton kernels of the program's own on a GPU: the programs that tests/cuda runs in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

import kernel_programs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("cuda_graphs", [False, True], ids=["", "cuda_graphs"])
@pytest.mark.parametrize("name", kernel_programs.PROGRAMS)
def test_programs(name: str, cuda_graphs: bool) -> None:
    assert kernel_programs.wrong(name, "cuda", {"cuda_graphs": cuda_graphs}) is None


@pytest.mark.parametrize("name", kernel_programs.CHECKS)
def test_checks(name: str) -> None:
    default = torch.get_default_device()
    torch.set_default_device("cuda")
    try:
        kernel_programs.CHECKS[name]()
    finally:
        torch.set_default_device(default)
