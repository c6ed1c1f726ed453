"""Buffers of one element whose value the program asks for, checks beside random numbers, modules without data."""

from __future__ import annotations

import copy
from typing import Any

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


def test_checks_beside_random_numbers() -> None:
    def f(x: torch.Tensor) -> Any:
        noise = torch.randn(3)
        if not (x > 0).all():
            raise ValueError("not positive")
        return x * noise + torch.randn(3), torch.distributions.Normal(x, x).rsample()

    fast = flashover.compile(f, fullgraph=True)
    for x in (torch.ones(3), torch.ones(3) * 2, -torch.ones(3), torch.ones(3)):
        results = []
        for g in (fast, f):
            torch.manual_seed(3)
            try:
                results.append(g(x))
            except ValueError as e:
                results.append(str(e))
            results.append(torch.rand(2))
        torch.testing.assert_close(results[1], results[3])
        assert isinstance(results[0], str) == isinstance(results[2], str) == bool(x[0] < 0)
        if not isinstance(results[0], str):
            torch.testing.assert_close(results[0], results[2])


def test_an_ensemble_over_a_module_without_data() -> None:
    from torch.func import functional_call, stack_module_state, vmap

    models = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(3)]
    params, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def f(x: torch.Tensor) -> torch.Tensor:
        def one(p: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
            return functional_call(base, (p, b), (x,))

        return vmap(one, in_dims=(0, 0, None))(params, buffers, x)

    x = torch.randn(5, 4)
    torch.testing.assert_close(flashover.compile(f, fullgraph=True)(x), f(x))
    assert all(p.is_meta for p in base.parameters())

    def uses(x: torch.Tensor) -> Any:
        return x + 1, base[0].weight.shape, (base[0].weight * 2).shape

    assert flashover.compile(uses)(x)[1:] == uses(x)[1:]
