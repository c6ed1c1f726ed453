"""A graph that raises while it runs: what the program did before stays done, and nothing else happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import flashover


def embeds(log: list[str], buffer: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    log.append("begins")
    buffer.add_(x.sum())
    log.append("counted")
    y = F.embedding(i, x)
    buffer.mul_(2)
    log.append("embedded")
    return y * buffer.sum()


def factors(log: list[str], buffer: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    log.append("begins")
    buffer.copy_(x[0, :3])
    a = x @ x.T - 4.0 * (i.max() > 3) * torch.eye(4)
    log.append("factors")
    y = torch.linalg.cholesky(a)
    log.append("done")
    buffer[0] = 7
    return y + buffer[0]


def draws(log: list[str], buffer: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    log.append("begins")
    noise = torch.rand(3)
    log.append("drawn")
    y = F.nll_loss(F.log_softmax(x, 1), i)
    buffer.add_(noise)
    return y + noise


def in_place(log: list[str], buffer: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    buffer += 1
    log.append("plus one")
    buffer.index_put_((i,), torch.tensor(5.0))
    log.append("put")
    return buffer * x[0, 0]


def state(f: Callable[..., Any], good_first: bool, training: bool) -> list[Any]:
    out: list[Any] = []
    log: list[str] = []
    buffer = torch.zeros(3)
    torch.manual_seed(3)
    x = torch.eye(4) * 1.5 + 0.01 * torch.arange(16.0).reshape(4, 4)
    x.requires_grad_(training)
    good, bad = torch.tensor([0, 1, 2, 1]), torch.tensor([0, 1, 9, 1])
    for i in [good, bad, good, bad, bad, good] if good_first else [bad, good, bad]:
        try:
            out.append(f(log, buffer, x, i).detach().clone())
        except (RuntimeError, IndexError) as error:
            out.append(type(error))
        out += [list(log), buffer.clone(), torch.get_rng_state()]
    return out


@pytest.mark.timeout(120)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("program", [embeds, factors, draws, in_place])
def test_what_was_done_before_stays(program: Callable[..., Any], training: bool) -> None:
    for good_first in (True, False):
        expected = state(program, good_first, training)
        got = state(flashover.compile(program), good_first, training)
        for k, (a, b) in enumerate(zip(expected, got, strict=True)):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(b, a, msg=lambda m, k=k: f"{k}: {m}")
            else:
                assert a == b, k


@pytest.mark.timeout(60)
@pytest.mark.parametrize("program", [embeds, in_place])
def test_it_was_compiled(program: Callable[..., Any]) -> None:
    compiled = flashover.compile(program, fullgraph=True)
    for i in (torch.tensor([0, 1]), torch.tensor([0, 9])):
        log: list[str] = []
        try:
            compiled(log, torch.zeros(3), torch.eye(4), i)
        except IndexError:
            assert i[1] == 9
        assert log[0] in ("begins", "plus one")
    assert flashover.compile_stats()["frames"] > 0
