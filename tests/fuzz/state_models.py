"""Small random models with state, for fuzz_state: statistics, counters, caches, averages, tied and derived weights."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.utils import parametrizations

WIDTH = 4
CHANNELS = 3


class Counter(nn.Module):
    """Counts its calls in a buffer and in a Python attribute, and scales by the count."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=r.choice([torch.long, torch.float32])))
        self.calls = 0
        self.how = r.randrange(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training or self.how == 0:
            if self.how == 1:
                self.count = self.count + 1
            elif self.how == 2:
                self.count.data.add_(1)
            else:
                self.count.add_(1)
        if self.how == 3:
            self.calls += 1
        return x / (1 + 0.1 * self.count.to(x.dtype))


class Average(nn.Module):
    """Keeps an exponential average of its input in one of the ways that people write."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.register_buffer("ema", torch.zeros(1, WIDTH), persistent=r.random() < 0.8)
        self.how = r.randrange(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            mean = x.detach().reshape(-1, WIDTH).mean(0, keepdim=True)
            if self.how == 0:
                self.ema.mul_(0.7).add_(mean, alpha=0.3)
            elif self.how == 1:
                self.ema = 0.7 * self.ema + 0.3 * mean
            elif self.how == 2:
                self.ema.data = 0.7 * self.ema + 0.3 * mean
            elif self.how == 3:
                self.ema.data.lerp_(mean, 0.3)
            elif self.how == 4:
                with torch.no_grad():
                    self.ema.copy_(self.ema * 0.7 + mean * 0.3)
            else:
                self.ema.detach().view(-1)[:2].add_(mean.view(-1)[:2])
        return x - 0.5 * self.ema


class RunningCache(nn.Module):
    """A ring of what it saw last, read by attention over it."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(3, WIDTH))
        self.at = 0
        self.fixed = r.random() < 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.cache[self.at % 3] = x.detach().reshape(-1, WIDTH)[0]
        if not self.fixed:
            self.at += 1
        return x + torch.softmax(x @ self.cache.t(), -1) @ self.cache


class Lookup(nn.Module):
    """An embedding, perhaps with a norm that its rows are scaled down to when they are read."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.table = nn.Embedding(5, WIDTH, max_norm=r.choice([None, 0.5, 1.0]), padding_idx=r.choice([None, 0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        index = (x.detach().sum(-1).abs() * 3).long() % 5
        return x + self.table(index)


class Clipped(nn.Module):
    """Keeps its weight within bounds, behind autograd's back or not."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))
        self.how = r.randrange(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == 0:
            self.weight.data.clamp_(-0.8, 0.8)
        elif self.how == 1:
            with torch.no_grad():
                self.weight.clamp_(-0.8, 0.8)
        else:
            self.weight.detach().clamp_(-0.8, 0.8)
        return x * self.weight


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH, bias=r.random() < 0.5)
        self.down = nn.Linear(WIDTH, WIDTH, bias=r.random() < 0.5)
        self.down.weight = self.up.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


class Observed(nn.Module):
    """Range tracking as quantization does it."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(0.0))
        self.register_buffer("high", torch.tensor(0.0))
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            low, high = torch.aminmax(x.detach())
            self.low.copy_(torch.minimum(low, self.low))
            self.high.copy_(torch.maximum(high, self.high))
        scale = (self.high - self.low).clamp(min=1e-2) / 255
        scale, zero = scale.float(), torch.zeros((), dtype=torch.int32)
        quantized = torch.fake_quantize_per_tensor_affine(x.float(), scale, zero, -128, 127)
        return quantized.to(x.dtype) @ self.weight


class Memory(nn.Module):
    """A recurrent cell whose state stays from call to call."""

    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.register_buffer("state", torch.zeros(1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, WIDTH)
        h = self.cell(rows, self.state.expand(rows.shape[0], -1))
        self.state = h.detach()[:1].clone()
        return h.reshape(x.shape)


class Residual(nn.Module):
    """x + inner(x), the inner part perhaps without a gradient."""

    def __init__(self, inner: nn.Module, frozen: bool) -> None:
        super().__init__()
        self.inner = inner
        self.frozen = frozen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.frozen:
            with torch.no_grad():
                y = self.inner(x)
            return x + y
        return x + self.inner(x)


def normalization(r: random.Random, width: int, image: bool) -> nn.Module:
    momentum = r.choice([0.1, 0.5, 0.9, None])
    tracked = r.random() < 0.85
    kind = (nn.BatchNorm2d, nn.InstanceNorm2d) if image else (nn.BatchNorm1d, nn.BatchNorm1d)
    made = kind[r.random() < 0.15]
    if made is nn.InstanceNorm2d:
        return made(width, affine=r.random() < 0.5, track_running_stats=tracked, momentum=momentum or 0.1)
    return made(width, affine=r.random() < 0.8, track_running_stats=tracked, momentum=momentum)


def derived(r: random.Random) -> nn.Module:
    """A linear layer whose weight is computed from others."""
    linear = nn.Linear(WIDTH, WIDTH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return r.choice([
            parametrizations.spectral_norm, parametrizations.weight_norm, nn.utils.weight_norm, nn.utils.spectral_norm
        ])(linear)  # fmt: skip


def lazy(r: random.Random) -> nn.Module:
    made = nn.LazyLinear(WIDTH)
    made(torch.zeros(2, WIDTH))
    return made


def row_block(r: random.Random) -> nn.Module:
    made: Callable[[], nn.Module] = r.choice([
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), normalization(r, WIDTH, False), nn.ReLU()),
        lambda: normalization(r, WIDTH, False),
        lambda: normalization(r, WIDTH, False),
        lambda: nn.Dropout(r.choice([0.1, 0.5])),
        lambda: nn.LayerNorm(WIDTH),
        lambda: derived(r),
        lambda: derived(r),
        lambda: lazy(r),
        lambda: Counter(r),
        lambda: Average(r),
        lambda: RunningCache(r),
        lambda: Lookup(r),
        lambda: Clipped(r),
        lambda: Tied(r),
        lambda: Observed(r),
        lambda: Memory(r),
        lambda: nn.RReLU(),
    ])  # fmt: skip
    block = made()
    return Residual(block, r.random() < 0.25) if r.random() < 0.3 else block


def image_block(r: random.Random) -> nn.Module:
    conv = nn.Conv2d(CHANNELS, CHANNELS, r.choice([1, 3]), padding="same", bias=r.random() < 0.5)
    return r.choice([
        conv,
        nn.Sequential(conv, normalization(r, CHANNELS, True), nn.ReLU()),
        nn.Sequential(conv, normalization(r, CHANNELS, True)),
        normalization(r, CHANNELS, True),
        nn.Dropout2d(0.3),
        Residual(normalization(r, CHANNELS, True), r.random() < 0.5),
    ])  # fmt: skip


class Model(nn.Module):
    """Image blocks or none, then row blocks, a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        r = random.Random(seed)
        torch.manual_seed(seed)
        self.image = r.random() < 0.35
        self.backbone = nn.Sequential(*(image_block(r) for _ in range(r.randint(1, 2) if self.image else 0)))
        if self.image:
            self.squeeze = nn.Linear(CHANNELS, WIDTH)
        self.blocks = nn.ModuleList(row_block(r) for _ in range(r.randint(1, 2 if self.image else 4)))
        self.head = nn.Linear(WIDTH, 2)
        if r.random() < 0.3:
            self.backbone.requires_grad_(False)
            if self.blocks:
                self.blocks[0].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.image:
            x = self.squeeze(self.backbone(x).mean((2, 3)))
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def example(self, r: random.Random, dtype: torch.dtype) -> torch.Tensor:
        rows = r.choice([3, 3, 5])
        shape = (rows, CHANNELS, 5, 5) if self.image else (rows, WIDTH)
        return (torch.randn(shape, dtype=torch.float64) * r.choice([0.5, 1, 2]) + r.choice([0, 0, 1.5])).to(dtype)
