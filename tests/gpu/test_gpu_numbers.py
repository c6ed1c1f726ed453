"""Numbers that a program reads from tensors of the device: part of the whole graph, right for every value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import differ
from number_programs import written_behind
from torch import Tensor

import flashover

pytestmark = pytest.mark.gpu


def written_to_memory(x: Tensor) -> Any:
    low = x.min().item()
    x.sub_(low)
    return low, x.max().item()


def of_a_nonzero(x: Tensor) -> Any:
    rows = (x > 0).nonzero()
    return rows.shape[0], x[rows[:, 0], rows[:, 1]] * 2


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.square().max().item(),
    "float()": lambda x: float(x.max()),
    "tolist": lambda x: (x.tolist(), x * 2),
    "whole numbers": lambda x: (x.nan_to_num(0, 9, -9).clamp(-9, 9).long().sum().item(), x + 1),
    "a scalar operand": lambda x: x * x.max().item(),
    "two of them": lambda x: (x - x.min().item()) / (x.abs().max().item() + 1e-3),
    "computed": lambda x: (x * (2.0 * x.max().item() - 1) + 3 / 2, x.max().item() * 2),
    "clamped": lambda x: x.clamp(max=x.mean().item()),
    "full": lambda x: torch.full((3,), x.max().item(), dtype=x.dtype, device=x.device),
    "written behind it": written_behind,
    "written to memory": written_to_memory,
    "a size": of_a_nonzero,
}
VALUES: list[float | None] = [None, 3.0, 0.0, -2.5, 1e30, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_of_data(name: str, mode: str | None) -> None:
    program = PROGRAMS[name]
    fast = flashover.compile(program, fullgraph=True, mode=mode)
    for value in VALUES * 2:
        x = torch.randn(5, 7, device="cuda")
        if value is not None:
            x[0, 3] = value
        mine, theirs = x.clone(), x.clone()
        got, want = fast(mine), program(theirs)
        assert not (reason := differ((got, mine), (want, theirs), floats=1e-5)), (value, reason)


def test_in_training() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 1)).cuda()
    losses: dict[str, list[float]] = {"eager": [], "compiled": []}

    def step(x: Tensor, log: list[float]) -> Tensor:
        loss = net(x).square().mean()
        log.append(loss.item())
        return loss / (1 + loss.item())

    xs = [torch.randn(n, 16, device="cuda") for n in (4, 6, 9, 6)]
    for how, call in (("eager", step), ("compiled", flashover.compile(step))):
        grads = []
        for x in xs:
            net.zero_grad()
            call(x, losses[how]).backward()
            grads.append(net[0].weight.grad.clone())
        if how == "eager":
            want = grads
    assert losses["compiled"] == pytest.approx(losses["eager"], rel=1e-5)
    for a, b in zip(grads, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
