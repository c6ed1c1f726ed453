"""Plans that run as sub-plans, as where CUDA graphs are made of the parts around what cannot be recorded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import flashover


def compiled(fn: Any, sub_plans: int) -> Any:
    return flashover.compile(fn, fullgraph=True, options={"sub_plans": sub_plans})


def mutating(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.mm(x, x.t())
    state.add_(y.sum())
    z = torch.cat([y, torch.mm(y, y)], 1)
    state.mul_(2)
    w = torch.linalg.vector_norm(z, dim=1)
    return z, z[:, 2:7], w, y.t(), state, torch.mm(z.t(), z).relu_()[3]


def sorting(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values, at = torch.sort(x, dim=-1)
    total = torch.cumsum(values, 0)
    picked = torch.gather(total, 1, at)
    best, where = torch.topk(picked + state, 3)
    return values, at, best.exp(), where, torch.mm(picked, total.t()), x


def windows(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    y = F.conv2d(x[None, None], torch.ones(4, 1, 3, 3), padding=1)
    y = F.max_pool2d(F.gelu(y), 2) + state
    return F.interpolate(y, scale_factor=2, mode="bilinear").softmax(-1)


@pytest.mark.parametrize("sub_plans", [2, 3, 100])
@pytest.mark.parametrize("fn", [mutating, sorting, windows])
def test_sub_plans_do_what_the_whole_does(fn: Callable[..., Any], sub_plans: int) -> None:
    fast = compiled(fn, sub_plans)
    torch.manual_seed(0)
    with torch.no_grad():
        for _ in range(3):
            x, state = torch.randn(12, 12), torch.randn(1)
            mine, theirs = (x.clone(), state.clone()), (x.clone(), state.clone())
            got, want = fast(*mine), fn(*theirs)
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(mine, theirs)
            if isinstance(got, tuple):
                assert [t.stride() for t in got] == [t.stride() for t in want]
                assert [[a is b for b in (*got, *mine)] for a in got] == [
                    [a is b for b in (*want, *theirs)] for a in want
                ]


@pytest.mark.parametrize("sub_plans", [3, 100])
def test_training_in_sub_plans(sub_plans: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(8 * 36, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4),
    )  # fmt: skip
    other = copy.deepcopy(model)
    fast = compiled(model, sub_plans)
    for _ in range(3):
        x = torch.randn(5, 3, 6, 6)
        for m, f in ((model, fast), (other, other)):
            m.zero_grad()
            F.cross_entropy(f(x), torch.arange(5) % 4).backward()
            with torch.no_grad():
                for p in m.parameters():
                    p -= 0.1 * p.grad
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_frozen_parts_of_sub_plans_follow_the_weights() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8 * 4, 40),
    ).eval()  # fmt: skip
    fast = compiled(model, 4)
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
            for p in model.parameters():
                p.mul_(1.1)


@torch.library.custom_op("flashover_sub_plans::refuses", mutates_args=())
def refuses(x: torch.Tensor) -> torch.Tensor:
    if x.flatten()[0] > 100:
        raise ValueError("too large")
    return x + 1


@refuses.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_error_in_a_later_sub_plan() -> None:
    """What an earlier sub-plan wrote is written: the call cannot be repeated, and is not."""

    def fn(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state += 1
        return refuses(torch.mm(x, x)) * 2

    fast = compiled(fn, 100)
    x, state = torch.full((2, 2), 2.0), torch.zeros(300, 300)
    for _ in range(3):
        fast(x, state)
    with pytest.raises(ValueError, match="too large"):
        fast(x * 10, state)
    assert state.unique().item() in (3, 4)  # (eager's 4, if it was repeated; never 5)
    fast(x, state)
    assert state.unique().item() in (4, 5)
