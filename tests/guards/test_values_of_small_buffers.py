"""Buffers of one element whose value the program asks for: guarded, and asked anew where it changes."""

from __future__ import annotations

import torch
from torch import nn

import flashover


def stats() -> dict[str, int]:
    return dict(flashover.compile_stats())


class Padded(nn.Module):  # as codecs compute their paddings
    def __init__(self) -> None:
        super().__init__()
        for name, value in (("kernel", 5), ("stride", 2), ("total", 3)):
            self.register_buffer(name, torch.tensor(value), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-1]
        n = torch.ceil((length - self.kernel + self.total) / self.stride + 1).to(torch.int64) - 1
        extra = n * self.stride + self.kernel - self.total - length
        return nn.functional.pad(x, (int(self.total), extra)).sin()


class Initialised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ready", torch.tensor([False]))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            self.scale.copy_(x.abs().max())
            self.ready.fill_(True)
        return x / self.scale


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        if self.step % 3 == 0:
            x = x * 2
        return x + self.step


def test_values_of_small_buffers() -> None:
    model = Padded()
    fast = flashover.compile(model, fullgraph=True)
    x = torch.randn(2, 9)
    before = stats()
    for _ in range(2):
        torch.testing.assert_close(fast(x), model(x))
    assert stats()["frames"] - before["frames"] == 1
    model.total.fill_(4)  # another one: compiled again
    torch.testing.assert_close(flashover.compile(model)(x), model(x))


def test_buffers_that_change() -> None:
    for make in (Initialised, Counting):
        flashover.reset()
        torch.manual_seed(0)
        model, twin = make(), make()
        fast = flashover.compile(model)
        before = stats()
        for _ in range(12):
            x = torch.randn(3, 4)
            torch.testing.assert_close(fast(x), twin(x))
            for a, b in zip(model.buffers(), twin.buffers(), strict=True):
                torch.testing.assert_close(a, b)
        assert stats()["frames"] - before["frames"] <= 8
