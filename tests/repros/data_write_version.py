"""Writes in compiled code move the version counters of their inputs as eager's do: a write through `x.data` does not,
so that what autograd saved of x stays valid; one through `x.detach()` does."""

from collections.abc import Callable

import torch

import flashover


def clip(w: torch.Tensor) -> None:
    w.data.clamp_(-0.5, 0.5)


def assign(w: torch.Tensor) -> None:
    w.data[0] = torch.zeros(4)


def copy(w: torch.Tensor) -> None:
    w.data.copy_(w.data * 0.9)


def detached(w: torch.Tensor) -> None:
    w.detach().mul_(0.9)


def twice(w: torch.Tensor) -> None:
    with torch.no_grad():
        w.mul_(2)
        w[0].add_(1)


def outcome(write: Callable[[torch.Tensor], None]) -> tuple[int, bool]:
    """By how much the version moved, and whether the gradient of what was computed before can be had."""
    w = torch.randn(3, 4, requires_grad=True)
    loss = (w * w).sum()
    before = w._version
    write(w)
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), error
        return w._version - before, False
    return w._version - before, True


for write in (clip, assign, copy, detached, twice):
    eager, compiled = outcome(write), outcome(flashover.compile(write))
    assert compiled == eager, f"{write.__name__}: (versions, backward) {compiled}, in eager {eager}"


def handed_out(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return w.data, w.detach()


# An alias that compiled code hands out has the counter that eager's has.
for make in (handed_out, flashover.compile(handed_out)):
    w = torch.randn(3, 4)
    data, detached_alias = make(w)
    data.zero_()
    assert (w._version, data._version) == (0, 1), (w._version, data._version)
    detached_alias.add_(1)
    assert (w._version, detached_alias._version) == (1, 1)
    assert torch.equal(w, torch.ones(3, 4))
