"""CUDA graphs of parts of a plan, around what cannot be recorded: CPU tensors among operands, operators that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_tools import agree, waits

import flashover
from flashover import _C

pytestmark = pytest.mark.gpu


def layers(x: torch.Tensor, weight: torch.Tensor, count: int = 3) -> torch.Tensor:
    for _ in range(count):
        x = torch.softmax(x @ weight, -1) + x
    return x


def waiting(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = layers(x, weight)
    state.add_(y.mean(0))
    z = waits(y)
    return layers(z, weight) + state, y, z


def from_the_cpu(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = layers(x, weight)
    z = layers(y * state.to("cuda"), weight)
    state.mul_(2)
    return layers(z, weight), y


def twice(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = waits(layers(x, weight)).cos()
    return layers(x, weight)


@pytest.mark.unsanitized
@pytest.mark.parametrize("fn", [waiting, from_the_cpu, twice])
def test_parts(fn: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    flashover.reset()
    fast = flashover.compile(fn, mode="reduce-overhead", fullgraph=True)
    torch.manual_seed(0)
    weight = torch.randn(32, 32, device="cuda")
    kept: list[Any] = []
    with torch.no_grad():
        for i in range(8):
            if i == 4:
                before = _C._graph_replays()
            x = torch.randn(16, 32, device="cuda")
            state = torch.randn(32, device="cpu" if fn is from_the_cpu else "cuda")
            mine = state.clone()
            kept.append((fast(x, weight, mine), fn(x, weight, state), mine, state))
    for got, want, mine, state in kept:  # nothing was written again
        agree(got, want, strides=False)
        agree(mine, state)
    assert _C._graph_replays() - before >= 8  # two parts a call or more
    said = capfd.readouterr().err
    assert said.count("CUDA graphs of sub-plans only") >= 1
    assert "no CUDA graph:" not in said


@pytest.mark.unsanitized
def test_training_in_parts() -> None:
    flashover.reset()

    def fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return layers(waits(layers(x, weight)), weight).pow(2).mean()

    fast = flashover.compile(fn, mode="reduce-overhead", fullgraph=True)
    torch.manual_seed(0)
    for _ in range(14):
        x = torch.randn(16, 32, device="cuda")
        weight = torch.randn(32, 32, device="cuda", requires_grad=True)
        other = weight.detach().clone().requires_grad_()
        fast(x, weight).backward()
        fn(x, other).backward()
        agree(weight.grad, other.grad, rtol=1e-3)
