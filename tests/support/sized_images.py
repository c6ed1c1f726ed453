"""Programs over images whose batch, height and width change, and what they are called with."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import flashover

Shape = Callable[[int], tuple[int, ...]]


def images(n: int) -> tuple[int, ...]:
    return n, 4, 7 + n, 6 + n


def lines(n: int) -> tuple[int, ...]:
    return n, 4, 7 + n


def volumes(n: int) -> tuple[int, ...]:
    return n, 4, 4 + n, 5 + n, 6


def weight(*sizes: int) -> torch.Tensor:
    return torch.linspace(-0.5, 0.5, int(torch.Size(sizes).numel())).cos().view(sizes) * 0.3


W33, W11, EVEN, WIDE = weight(8, 4, 3, 3), weight(8, 4, 1, 1), weight(8, 4, 4, 4), weight(8, 4, 3, 3, 3)
DEPTHWISE, GROUPED, BACK = weight(4, 1, 3, 3), weight(8, 2, 3, 3), weight(4, 8, 3, 3)
LINE, BIAS, MEAN, VARIANCE = weight(8, 4, 3), weight(8), weight(4), weight(4).abs() + 0.5
TENSORS = ("W33", "W11", "EVEN", "WIDE", "DEPTHWISE", "GROUPED", "BACK", "LINE", "BIAS", "MEAN", "VARIANCE")


def last(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=torch.channels_last)


def down_and_up(x: torch.Tensor, mode: str) -> torch.Tensor:
    return F.interpolate(F.avg_pool2d(x, 2), size=x.shape[-2:], mode=mode) + x


def cover(x: torch.Tensor) -> torch.Tensor:
    """Whole windows of four, as window attention pads."""
    height, width = x.shape[2:]
    return F.pad(x, (0, (4 - width % 4) % 4, 0, (4 - height % 4) % 4)) * 2


# name -> (program, shape of n), all whole; one compile serves all sizes, or two that are alike.
PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], object], Shape]] = {
    "conv": (lambda x: F.conv2d(x, W33, BIAS), images),
    "conv, padded": (lambda x: F.conv2d(x, W33, padding=1), images),
    "conv, strided": (lambda x: F.conv2d(x, W33, BIAS, stride=2, padding=1).relu(), images),
    "conv, same": (lambda x: F.conv2d(x, W33, BIAS, padding="same"), images),
    "conv, same, even": (lambda x: F.conv2d(x, EVEN, padding="same"), images),
    "conv, dilated": (lambda x: F.conv2d(x, W33, BIAS, dilation=2), images),
    "conv of points": (lambda x: F.conv2d(x, W11), images),
    "conv, depthwise": (lambda x: F.conv2d(x, DEPTHWISE, groups=4, padding=1), images),
    "conv, groups": (lambda x: F.conv2d(x, GROUPED, groups=2), images),
    "conv, transposed": (lambda x: F.conv_transpose2d(x, BACK, stride=2, padding=1, output_padding=1), images),
    "conv, channels last": (lambda x: F.conv2d(last(x), W33, BIAS), images),
    "conv of one image, channels last": (
        lambda x: F.conv2d(last(x), W33, BIAS, dilation=2),
        lambda n: (1, 4, 6 + n, 8 + n),
    ),
    "conv in one dimension": (lambda x: F.conv1d(x, LINE, BIAS, padding=1), lines),
    "conv in three dimensions": (lambda x: F.conv3d(x, WIDE, padding=1), volumes),
    "conv of reflections": (lambda x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), W33), images),
    "pad, replicated": (lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate") * 2, images),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3)), images),
    "crop": (lambda x: x[:, :, 1:-1, 2:-2] * 2, images),
    "max_pool": (lambda x: F.max_pool2d(x, 2), images),
    "max_pool, padded": (lambda x: F.max_pool2d(x, 3, 2, 1), images),
    "max_pool, indices": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), images),
    "max_pool, ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), images),
    "max_pool, channels last": (lambda x: F.max_pool2d(last(x), 2), images),
    "max_pool in one dimension": (lambda x: F.max_pool1d(x, 2), lines),
    "max_pool in three dimensions": (lambda x: F.max_pool3d(x, 2), volumes),
    "unpool": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=x.shape[2:]),
        images,
    ),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), images),
    "avg_pool, padding left out": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), images),
    "avg_pool, ceil": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), images),
    "avg_pool in one dimension": (lambda x: F.avg_pool1d(x, 3), lines),
    "avg_pool in three dimensions": (lambda x: F.avg_pool3d(x, 2), volumes),
    "mean of an image": (lambda x: F.adaptive_avg_pool2d(x, 1), images),
    "mean of an image, channels last": (lambda x: F.conv2d(F.adaptive_avg_pool2d(last(x), 1), W11), images),
    "adaptive_avg_pool": (lambda x: F.adaptive_avg_pool2d(x, 3), images),
    "adaptive_max_pool": (lambda x: F.adaptive_max_pool2d(x, 2), images),
    "adaptive_avg_pool in one dimension": (lambda x: F.adaptive_avg_pool1d(x, 2), lines),
    "lp_pool": (lambda x: F.lp_pool2d(x.abs() + 1, 2, 2), images),
    "nearest, doubled": (lambda x: F.interpolate(x, scale_factor=2), images),
    "nearest, halved": (lambda x: F.interpolate(x, scale_factor=0.5), images),
    "nearest, by 1.5": (lambda x: F.interpolate(x, scale_factor=1.5), images),
    "nearest, to a size of sizes": (
        lambda x: F.interpolate(x, size=(x.shape[2] * 2, x.shape[3] + 3)),
        images,
    ),
    "nearest, to a size": (lambda x: F.interpolate(x, size=(9, 9)), images),
    "nearest, and back": (lambda x: down_and_up(x, "nearest"), images),
    "nearest, exact": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"), images),
    "nearest in one dimension": (lambda x: F.interpolate(x, scale_factor=2), lines),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), images),
    "bilinear, corners": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True), images),
    "bilinear, to a size": (lambda x: F.interpolate(x, size=(9, 9), mode="bilinear"), images),
    "bilinear, and back": (lambda x: down_and_up(x, "bilinear"), images),
    "bilinear, antialiased": (lambda x: F.interpolate(x, size=(5, 5), mode="bilinear", antialias=True), images),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), images),
    "linear": (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), lines),
    "trilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), volumes),
    "area": (lambda x: F.interpolate(x, size=(3, 3), mode="area"), images),
    "batch_norm": (lambda x: F.batch_norm(x, MEAN, VARIANCE), images),
    "batch_norm, trained": (lambda x: F.batch_norm(x, None, None, training=True), images),
    "batch_norm, trained, channels last": (
        lambda x: F.batch_norm(last(x), None, None, MEAN, MEAN, training=True),
        images,
    ),
    "group_norm": (lambda x: F.group_norm(x, 2), images),
    "instance_norm": (lambda x: F.instance_norm(x), images),
    "local_response_norm": (lambda x: F.local_response_norm(x, 2), images),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), images),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), images),
    "unfold": (lambda x: F.unfold(x, 3, padding=1), images),
    "points": (lambda x: x.flatten(2).transpose(1, 2), images),
    "squeeze and excite": (lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(), images),
}


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int = 1) -> None:
        super().__init__()
        self.one, self.norm_one = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.two, self.norm_two = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm_two(self.two(F.relu(self.norm_one(self.one(x)))))
        return F.relu(y + self.short(x))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(3, 2, 1))
        self.body, self.pool = nn.Sequential(Residual(8, 8), Residual(8, 16, 2)), nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.flatten(self.pool(self.body(self.stem(x))), 1))


class Excited(nn.Module):
    """A mobile network's block."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.Conv2d(3, 12, 1), nn.BatchNorm2d(12), nn.Hardswish())
        self.depth = nn.Sequential(nn.Conv2d(12, 12, 3, 2, 1, groups=12), nn.BatchNorm2d(12), nn.ReLU6())
        self.pool, self.scale = nn.AdaptiveAvgPool2d(1), nn.Conv2d(12, 12, 1)
        self.down = nn.Conv2d(12, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.depth(self.up(x))
        return self.down(x * F.hardsigmoid(self.scale(self.pool(x)))).mean([2, 3])


class Modern(nn.Module):
    """A ConvNeXt's block."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.depth = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cut(x)
        y = self.down(F.gelu(self.up(self.norm(self.depth(x).permute(0, 2, 3, 1)))))
        return self.head(self.pool(x + y.permute(0, 3, 1, 2)).flatten(1))


class Pyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([Residual(3, 8, 2), Residual(8, 16, 2), Residual(16, 32, 2)])
        self.sides = nn.ModuleList([nn.Conv2d(n, 8, 1) for n in (8, 16, 32)])
        self.out = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        levels = []
        for stage, side in zip(self.stages, self.sides, strict=True):
            x = stage(x)
            levels.append(side(x))
        made = [levels[-1]]
        for level in (levels[1], levels[0]):
            made.append(level + F.interpolate(made[-1], size=level.shape[-2:], mode="nearest"))
        return [self.out(level) for level in made]


class Segments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = Residual(3, 8, 2)
        self.branches = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=d, dilation=d) for d in (1, 2)])
        self.pool, self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1)), nn.Conv2d(24, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        whole = F.interpolate(self.pool(y), size=y.shape[-2:], mode="bilinear", align_corners=False)
        y = self.head(torch.cat([branch(y) for branch in self.branches] + [whole], 1))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 8, 3, padding="same"))
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.GroupNorm(2, 8), nn.Upsample(scale_factor=2))
        self.shuffle = nn.Sequential(nn.Conv2d(8, 12, 3, padding=1, padding_mode="reflect"), nn.PixelShuffle(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shuffle(self.up(self.down(x))).tanh()


class Sounds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Conv1d(3, 8, 7, 2, 3), nn.BatchNorm1d(8), nn.GELU(), nn.MaxPool1d(2))
        self.pool, self.head = nn.AdaptiveAvgPool1d(4), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.f(x.flatten(2))).flatten(1))


def rectangles(n: int) -> tuple[int, ...]:
    return n, 3, 33 + 3 * n, 40 + 2 * n


MODULES: dict[str, Callable[[], nn.Module]] = {
    "classifier": Classifier,
    "excited": Excited,
    "modern": Modern,
    "pyramid": Pyramid,
    "segments": Segments,
    "generator": Generator,
    "sounds": Sounds,
}


def weighed(results: object) -> torch.Tensor:
    """A loss in which each element of the results has another weight."""
    return sum((r * r.detach().cos()).sum() for r in tree_leaves(results) if r.requires_grad)


class Trained:
    """A compiled module beside eager's and the exact one, in float64: the gradients of all three at each call."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.eager, self.exact = module, copy.deepcopy(module), copy.deepcopy(module).double()
        self.compiled = flashover.compile(module, options={"recompile_limit": 64})

    def check(self, x: torch.Tensor, said: str, floor: float) -> None:
        """The compiled gradients are at most `floor`, or four times eager's own error, off the exact ones.

        A ReLU whose operand is zero but for rounding has a gradient or none: another input tells that from a fault.
        """
        wrong = self.wrong(x, floor)
        if wrong:
            wrong = self.wrong(x + 0.01 * torch.randn_like(x), floor)
        assert not wrong, f"{said}: {wrong}"

    def wrong(self, x: torch.Tensor, floor: float) -> str:
        for called, given in ((self.compiled, x), (self.eager, x), (self.exact, x.double())):
            called.zero_grad()
            sum(r.square().mean() for r in tree_leaves(called(given))).backward()
        parameters = zip(self.module.named_parameters(), self.eager.parameters(), self.exact.parameters(), strict=True)
        for (parameter, p), q, r in parameters:
            scale = r.grad.abs().max().clamp(min=1e-3)
            ours, theirs = ((g - r.grad).abs().max() / scale for g in (p.grad, q.grad))
            if not ours < max(floor, 4 * theirs):
                return f"{parameter} is {ours:.1e} off, eager's {theirs:.1e}"
        return ""
