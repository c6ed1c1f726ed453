"""Programs for fuzz_failures.py: each makes a World, in which a function with state is called again and again.

A program covers one way in which a call may touch what outlives it: parameters, buffers, globals, cells, hooks,
generators, random numbers, autograd. Variant 0 of its inputs is what it is compiled for, variant 1 is compiled again.
`state()` is what a call may change beside its inputs.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class World:
    """One copy of a program."""

    function: Callable[..., Any]  # to be compiled
    inputs: Callable[[int], tuple[Any, ...]]  # of a variant; the same objects each time
    state: Callable[[], Any] = tuple  # what calls change beside their inputs
    module: nn.Module | None = None  # compiled instead of the function
    trains: bool = False  # the result is differentiated
    tolerance: float = 1e-4  # between a result and eager's


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    """Some numbers, always the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def two(make: Callable[[int], tuple[Any, ...]]) -> Callable[[int], tuple[Any, ...]]:
    """Inputs of both variants, made once."""
    made = make(8), make(12)
    return lambda variant: made[variant]


def module_world(module: nn.Module, *shape: int, trains: bool = False) -> World:
    """A module that takes one tensor; its first size differs between the variants."""
    return World(
        module.forward,
        two(lambda n: (numbers(n, *shape),)),
        lambda: dict(module.state_dict()),
        module,
        trains,
    )


def pointwise() -> World:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + 1).sigmoid() * w - x.exp()

    return World(f, two(lambda n: (numbers(n, 32), numbers(32))))


def softmax() -> World:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x - x.mean(-1, keepdim=True)).softmax(-1)
        return y, y.sum(0).argmax()

    return World(f, two(lambda n: (numbers(n, 32),)))


def matmul() -> World:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ w + b) @ w.t()

    return World(f, two(lambda n: (numbers(n, 32), numbers(32, 16), numbers(16))))


def convolution() -> World:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return module_world(module.eval(), 3, 8, 8)


def training() -> World:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    return module_world(module, 16, trains=True)


def batch_norm() -> World:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU())
    return module_world(module, 16, trains=True)


def mutation() -> World:
    def f(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache[1:3] += x.sum(0)
        cache.mul_(0.5)
        return x + cache[:1]

    return World(f, two(lambda n: (numbers(n, 32), numbers(4, 32))))


def broken() -> World:
    said: list[int] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) + 1
        torch._dynamo.graph_break()
        said.append(len(said))
        if y.sum() > 0:
            return y * 2
        return y.sin() - 1

    return World(f, two(lambda n: (numbers(n, 32),)), lambda: said)


def nested_break() -> World:
    log: dict[str, int] = {}

    def inner(x: torch.Tensor) -> torch.Tensor:
        log["inner"] = log.get("inner", 0) + 1
        n = x.abs().sum().item()
        return x * (2 if n > 1 else 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = inner(x.sin())
        log["outer"] = log.get("outer", 0) + 1
        return inner(y + 1) - x

    return World(f, two(lambda n: (numbers(n, 16),)), lambda: log)


def generated() -> World:
    steps: list[int] = []

    def parts(x: torch.Tensor):  # type: ignore[no-untyped-def]
        for k in range(3):
            steps.append(k)
            yield torch.tanh(x + k) * 2

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [p + 1 for p in parts(x)]

    return World(f, two(lambda n: (numbers(n, 32),)), lambda: steps)


def random_numbers() -> World:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.rand(x.shape[-1])

    return World(f, two(lambda n: (numbers(n, 32),)), torch.get_rng_state)


def hooks() -> World:
    torch.manual_seed(0)
    seen: list[str] = []
    module = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    module[0].register_forward_pre_hook(lambda m, a: seen.append("before"))
    module[1].register_forward_hook(lambda m, a, out: seen.append("after") or out * 2)
    world = module_world(module, 16)
    world.state = lambda: (seen, dict(module.state_dict()))
    return world


def changing_numbers() -> World:
    calls: list[float] = []

    def f(x: torch.Tensor, scale: float, n: int) -> torch.Tensor:
        calls.append(scale)
        return x * scale + x[n] - len(calls)

    return World(f, lambda variant: (numbers(8, 32), 0.5 + variant, 1 + variant), lambda: calls)


COUNTS: dict[str, Any] = {"calls": 0, "names": []}


def global_state() -> World:
    counts: dict[str, Any] = {"calls": 0, "names": []}

    def f(x: torch.Tensor) -> dict[str, Any]:
        COUNTS["calls"] += 1
        COUNTS["names"].append("f")
        return {"y": x.cos() * COUNTS["calls"], "calls": COUNTS["calls"], "names": list(COUNTS["names"])}

    # Globals of its own: the eager copy beside it counts for itself.
    own = types.FunctionType(f.__code__, {**globals(), "COUNTS": counts}, "f")
    return World(own, two(lambda n: (numbers(n, 8),)), lambda: counts)


def cells() -> World:
    total, last = torch.zeros(32), None

    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal total, last
        total = total + x.sum(0)
        last = x.shape[0]
        return total * 2

    return World(f, two(lambda n: (numbers(n, 32),)), lambda: (total, last))


def views() -> World:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y[1:], y.t(), x.view(-1)[::2], y.reshape(-1)

    return World(f, two(lambda n: (numbers(n, 32),)))


def attention() -> World:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    return World(f, two(lambda n: (numbers(2, 2, n, 16), numbers(2, 2, n, 16, seed=2), numbers(2, 2, n, 16, seed=3))))


def embedding() -> World:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 20))
    ids = torch.arange(8).view(2, 4), torch.arange(12).view(2, 6)
    return World(module.forward, lambda v: (ids[v],), lambda: dict(module.state_dict()), module, trains=True)


def half_precision() -> World:
    torch.manual_seed(0)
    module = nn.Linear(32, 32)

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.relu(module(x)).float()

    # Eager rounds the operands to bfloat16; processors without instructions for it keep them (docs/user/numerics.md).
    inputs = two(lambda n: (numbers(n, 32),))
    return World(f, inputs, lambda: torch.is_autocast_enabled("cpu"), tolerance=2**-6)


def optimizer() -> World:
    torch.manual_seed(0)
    module = nn.Linear(8, 8)
    adam = torch.optim.Adam(module.parameters(), lr=0.1)
    for p in module.parameters():
        p.grad = torch.ones_like(p)

    def f(scale: int) -> None:
        for p in module.parameters():
            assert p.grad is not None
            p.grad.mul_(scale)
        adam.step()

    f(1)
    return World(
        f, lambda v: (1 + v,), lambda: (dict(module.state_dict()), [p.grad for p in module.parameters()], str(adam))
    )


def exceptions() -> World:
    caught: list[str] = []

    def risky(x: torch.Tensor, n: int) -> torch.Tensor:
        if n > 8:
            raise ValueError("too many")
        return x + n

    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            y = risky(x, x.shape[0])
        except ValueError as e:
            caught.append(str(e))
            y = x - 1
        with torch.no_grad():
            return y * 2

    return World(f, two(lambda n: (numbers(n, 8),)), lambda: (caught, torch.is_grad_enabled()))


def arrays() -> World:
    def f(x: torch.Tensor) -> torch.Tensor:
        a = x.numpy() * 2
        return torch.from_numpy(a.sum(0)) + 1

    return World(f, two(lambda n: (numbers(n, 8),)))


PROGRAMS: dict[str, Callable[[], World]] = {
    p.__name__: p
    for p in (
        pointwise,
        softmax,
        matmul,
        convolution,
        training,
        batch_norm,
        mutation,
        broken,
        nested_break,
        generated,
        random_numbers,
        hooks,
        changing_numbers,
        global_state,
        cells,
        views,
        attention,
        embedding,
        half_precision,
        optimizer,
        exceptions,
        arrays,
    )
}
