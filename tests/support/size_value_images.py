"""Programs over images and sequences that ask for their sizes by value, and what such programs are called with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

T = torch.Tensor
Inputs = Callable[[int], tuple[T, ...]]


def of(*shapes: Callable[[int], tuple[int, ...]]) -> Inputs:
    def make(n: int) -> tuple[T, ...]:
        generator = torch.Generator().manual_seed(n)
        return tuple(torch.randn(shape(n), generator=generator) for shape in shapes)

    return make


def im2col(x: T) -> T:
    return F.unfold(x, 3, padding=1) * 2


def im2col_strided(x: T) -> T:
    return F.unfold(x, 2, stride=2)


def col2im(x: T) -> T:
    h, w = x.shape[-2:]
    return F.fold(F.unfold(x, 3, padding=1), (h, w), 3, padding=1)


def pixel_unshuffle(x: T) -> T:
    return F.pixel_unshuffle(x, 2) + 1


def patches(x: T) -> T:
    b, c, h, w = x.shape
    return x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(b, (h // 4) * (w // 4), 16 * c)


def windows(x: T) -> T:
    b, h, w, c = x.shape
    x = F.pad(x, (0, 0, 0, -w % 7, 0, -h % 7))
    _, hp, wp, _ = x.shape
    y = x.view(b, hp // 7, 7, wp // 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)
    y = y * 2
    y = y.view(b, hp // 7, wp // 7, 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(b, hp, wp, c)
    return y[:, :h, :w].contiguous()


def shifted_mask(x: T) -> T:
    _, h, w, _ = x.shape
    hp, wp = h + -h % 4, w + -w % 4
    mask = x.new_zeros((hp, wp))
    cuts = ((0, -4), (-4, -2), (-2, None))
    count = 0
    for a in cuts:
        for b in cuts:
            mask[a[0] : a[1], b[0] : b[1]] = count
            count += 1
    mask = mask.view(hp // 4, 4, wp // 4, 4).permute(0, 2, 1, 3).reshape(-1, 16)
    mask = mask.unsqueeze(1) - mask.unsqueeze(2)
    return mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0)


def nearest_factor(x: T) -> T:
    return F.interpolate(x, scale_factor=1.3)


def nearest_double(x: T) -> T:
    return F.interpolate(x, scale_factor=2) + 1


def nearest_to_size(x: T) -> T:
    return F.interpolate(x, size=(12, 9)) + 1


def nearest_like(x: T) -> T:
    return F.interpolate(x[:, :, ::2, ::2], size=x.shape[-2:]) + x


def bilinear_factor(x: T) -> T:
    return F.interpolate(x, scale_factor=1.3, mode="bilinear")


def bilinear_double(x: T) -> T:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def bilinear_like(x: T) -> T:
    return F.interpolate(x[:, :, ::2, ::2], size=x.shape[-2:], mode="bilinear", align_corners=False)


def bilinear_corners(x: T) -> T:
    return F.interpolate(x, size=(17, 9), mode="bilinear", align_corners=True)


def bilinear_from_fixed(x: T) -> T:
    table = torch.linspace(-1, 1, 3 * 5 * 5).view(1, 3, 5, 5)
    return x + F.interpolate(table, size=x.shape[-2:], mode="bilinear")


def bicubic_positions(x: T) -> T:
    table = torch.linspace(-1, 1, 3 * 5 * 5).view(1, 3, 5, 5)
    return x + F.interpolate(table, size=x.shape[-2:], mode="bicubic")


def bicubic_double(x: T) -> T:
    return F.interpolate(x, scale_factor=2, mode="bicubic")


def antialias_half(x: T) -> T:
    return F.interpolate(x, size=(4, 4), mode="bilinear", antialias=True)


def linear_sequence(x: T) -> T:
    return F.interpolate(x, scale_factor=2, mode="linear")


def area_to(x: T) -> T:
    return F.interpolate(x, size=(3, 3), mode="area")


def upsample_nearest_exact(x: T) -> T:
    return F.interpolate(x, scale_factor=1.5, mode="nearest-exact")


def circular(x: T) -> T:
    return F.pad(x, (1, 1, 1, 1), mode="circular")


def reflect(x: T) -> T:
    return F.pad(x, (1, 1, 1, 1), mode="reflect")


def replicate(x: T) -> T:
    return F.pad(x, (1, 2, 2, 1), mode="replicate")


def circular_conv(x: T) -> T:
    return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), KERNEL)


def same_padding(x: T) -> T:
    h, w = x.shape[-2:]
    pad_h, pad_w = max((math.ceil(h / 2) - 1) * 2 + 3 - h, 0), max((math.ceil(w / 2) - 1) * 2 + 3 - w, 0)
    x = F.pad(x, (pad_w // 2, pad_w - pad_w // 2, pad_h // 2, pad_h - pad_h // 2))
    return F.conv2d(x, KERNEL, stride=2)


def affine(x: T) -> T:
    theta = torch.tensor([[1.0, 0.1, 0.0], [0.0, 0.9, 0.1]]).expand(x.shape[0], 2, 3)
    return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


def affine_corners(x: T) -> T:
    theta = torch.tensor([[1.0, 0.1, 0.0], [0.0, 0.9, 0.1]]).expand(x.shape[0], 2, 3)
    return F.affine_grid(theta, list(x.shape), align_corners=True)


def warp(x: T) -> T:
    b, _, h, w = x.shape
    y, z = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    flow = torch.stack([z / max(w - 1, 1) * 2 - 1, y / max(h - 1, 1) * 2 - 1], -1)
    return F.grid_sample(x, flow[None].expand(b, -1, -1, -1) * 0.9, align_corners=True)


KERNEL = torch.linspace(-1, 1, 4 * 3 * 3 * 3).view(4, 3, 3, 3)
KERNEL1 = torch.linspace(-1, 1, 4 * 3 * 3).view(4, 3, 3)
UP = torch.linspace(-1, 1, 3 * 4 * 2 * 2).view(3, 4, 2, 2)
DEEP = torch.linspace(-1, 1, 4 * 3 * 27).view(4, 3, 3, 3, 3)


def convolution(x: T) -> T:
    return F.conv2d(x, KERNEL, padding=1).relu()


def dilated(x: T) -> T:
    return F.conv2d(x, KERNEL, padding=2, dilation=2)


def strided(x: T) -> T:
    return F.conv2d(x, KERNEL, padding=1, stride=2)


def transposed(x: T) -> T:
    return F.conv_transpose2d(x, UP, stride=2)


def transposed_padded(x: T) -> T:
    return F.conv_transpose2d(x, UP, stride=2, padding=1, output_padding=1)


def convolution1(x: T) -> T:
    return F.conv1d(x, KERNEL1, padding=1)


def causal_convolution(x: T) -> T:
    return F.conv1d(F.pad(x, (4, 0)), KERNEL1, dilation=2)


def convolution1_same(x: T) -> T:
    return F.conv1d(x, KERNEL1, padding="same")


def transposed1(x: T) -> T:
    return F.conv_transpose1d(x, KERNEL1.transpose(0, 1).contiguous(), stride=2)


def convolution3(x: T) -> T:
    return F.conv3d(x, DEEP, padding=1)


def unet(x: T) -> T:
    down = F.max_pool2d(x, 2)
    up = F.interpolate(down, scale_factor=2)
    dh, dw = x.shape[2] - up.shape[2], x.shape[3] - up.shape[3]
    up = F.pad(up, (dw // 2, dw - dw // 2, dh // 2, dh - dh // 2))
    return torch.cat([x, up], 1)


def max_pool(x: T) -> T:
    return F.max_pool2d(x, 3, 2, 1)


def max_pool_ceil(x: T) -> T:
    return F.max_pool2d(x, 2, 2, ceil_mode=True)


def avg_pool(x: T) -> T:
    return F.avg_pool2d(x, 2)


def avg_pool_padded(x: T) -> T:
    return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)


def avg_pool_ceil(x: T) -> T:
    return F.avg_pool2d(x, 2, 2, ceil_mode=True)


def adaptive_one(x: T) -> T:
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def adaptive_some(x: T) -> T:
    return F.adaptive_avg_pool2d(x, (2, 3))


def adaptive_max(x: T) -> T:
    return F.adaptive_max_pool2d(x, (2, 2))


def adaptive_one_dimension(x: T) -> T:
    return F.adaptive_avg_pool1d(x, 4)


def lp_pool(x: T) -> T:
    return F.lp_pool2d(x, 2, 2)


def batch_norm_train(x: T) -> T:
    return F.batch_norm(x, torch.zeros(3), torch.ones(3), training=True)


def group_norm(x: T) -> T:
    return F.group_norm(x, 3)


def instance_norm(x: T) -> T:
    return F.instance_norm(x)


def spatial_mean(x: T) -> T:
    return x.sum((2, 3)) / (x.shape[2] * x.shape[3])


def spatial_softmax(x: T) -> T:
    b, c, h, w = x.shape
    p = x.view(b, c, h * w).softmax(-1).view(b, c, h, w)
    y = torch.linspace(-1, 1, h)
    return (p.sum(-1) * y).sum(-1)


def tokens(x: T) -> T:
    b, c, h, w = x.shape
    t = x.flatten(2).transpose(1, 2)
    t = t @ torch.ones(3, 3)
    return t.transpose(1, 2).reshape(b, c, h, w)


def anchors(x: T) -> T:
    h, w = x.shape[-2:]
    y = (torch.arange(h) + 0.5) * (64 / h)
    z = (torch.arange(w) + 0.5) * (64 / w)
    gy, gz = torch.meshgrid(y, z, indexing="ij")
    return torch.stack((gz, gy, gz + 8, gy + 8), -1).reshape(-1, 4)


IMAGES = of(lambda n: (2, 3, n + 4, n + 5))
EVEN_IMAGES = of(lambda n: (2, 3, 4 * n, 4 * n + 4))
LAST = of(lambda n: (2, n + 3, n + 6, 3))
SEQUENCES = of(lambda n: (2, 3, n + 8))
VOLUMES = of(lambda n: (1, 3, n % 40 + 2, 4, n % 40 + 3))

_TAKES: dict[Inputs, tuple[Callable[..., Any], ...]] = {
    IMAGES: (
        *(im2col, im2col_strided, col2im, nearest_factor, nearest_double, nearest_to_size, nearest_like),
        *(bilinear_factor, bilinear_double, bilinear_like, bilinear_corners, bilinear_from_fixed, bicubic_positions),
        *(bicubic_double, antialias_half, area_to, upsample_nearest_exact, circular, reflect, replicate),
        *(circular_conv, same_padding, affine, affine_corners, warp, convolution, dilated, strided, transposed),
        *(transposed_padded, unet, max_pool, max_pool_ceil, avg_pool, avg_pool_padded, avg_pool_ceil),
        *(adaptive_one, adaptive_some, adaptive_max, lp_pool, batch_norm_train, group_norm, instance_norm),
        *(spatial_mean, spatial_softmax, tokens, anchors),
    ),
    EVEN_IMAGES: (pixel_unshuffle, patches),
    LAST: (windows, shifted_mask),
    SEQUENCES: (
        *(linear_sequence, convolution1, causal_convolution, convolution1_same, transposed1, adaptive_one_dimension),
    ),
    VOLUMES: (convolution3,),
}
PROGRAMS = {f.__name__: (f, make) for make, takes in _TAKES.items() for f in takes}
