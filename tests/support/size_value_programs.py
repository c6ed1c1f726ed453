"""Programs that ask for a size by its value, as users write them, and what they are called with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import size_value_images
import torch
import torch.nn.functional as F
from size_value_images import Inputs, of

T = torch.Tensor
SIZES = (7, 2, 3, 8, 16, 31, 64, 127)


def rows(x: T) -> int:
    return x.shape[0]


# ---------------------------------------------------------------------------------------------- scalars of operators


def full_of_size(x: T) -> T:
    return torch.full((3,), x.shape[0]) + x[0, :3]


def full_float_of_size(x: T) -> T:
    return torch.full((3,), float(x.shape[0])) + x[0, :3]


def full_of_root(x: T) -> T:
    return torch.full((x.shape[0], 2), 1.0 / math.sqrt(x.shape[0])) * x[:, :2]


def scaled_scores(x: T) -> T:
    return ((x @ x.t()) * x.shape[0] ** -0.5).softmax(-1)


def entropy(x: T) -> T:
    p = x.softmax(0)
    return -(p * p.log()).sum(0) / math.log(x.shape[0] + 1)


def manual_variance(x: T) -> T:
    n = x.shape[0]
    mean = x.sum(0) / n
    return ((x - mean) ** 2).sum(0) / max(n - 1, 1)


def unbiased(x: T) -> T:
    n = x.numel()
    return x.var(unbiased=False) * (n / (n - 1))


def weighted(x: T) -> T:
    w = x.new_full((x.shape[0],), 1 / x.shape[0])
    return (w[:, None] * x).sum(0)


def addcmul_by_size(x: T) -> T:
    return torch.addcmul(x, x, x, value=1 / x.shape[0])


def addcdiv_by_size(x: T) -> T:
    return torch.addcdiv(x, x, x.abs() + 1, value=x.shape[0])


def lerp_by_size(x: T) -> T:
    return torch.lerp(x, x * 2, 1 / x.shape[0])


def add_alpha(x: T) -> T:
    return torch.add(x, x.sin(), alpha=x.shape[0])


def sub_alpha(x: T) -> T:
    return torch.sub(x, x.sin(), alpha=1 / x.shape[0])


def fill(x: T) -> T:
    return torch.empty_like(x).fill_(x.shape[0]) + x


def masked_fill_by_size(x: T) -> T:
    return x.masked_fill(x > 0, x.shape[0])


def masked_fill_by_float(x: T) -> T:
    return x.masked_fill(x > 0, -1.0 / x.shape[0])


def where_size(x: T) -> T:
    return torch.where(x > 0, x, x.shape[0])


def where_float(x: T) -> T:
    return torch.where(x > 0, x, x.shape[0] * 0.5)


def pad_value(x: T) -> T:
    return F.pad(x, (1, 2), value=1 / x.shape[0])


def pad_value_of_size(x: T) -> T:
    return F.pad(x, (1, 2), value=x.shape[0])


def in_place_scale(x: T) -> T:
    y = x.clone()
    y *= x.shape[0]
    y /= x.shape[0] + 1
    y -= x.shape[0]
    return y


def index_clamp(x: T) -> T:
    i = (x[:, 0] * 100).long().clamp(0, x.shape[0] - 1)
    return x[i]


def index_clamp_max(x: T) -> T:
    i = (x[:, 0] * 100).long().abs().clamp(max=x.shape[0] - 1)
    return x[i]


def wrapped_index(x: T) -> T:
    i = (torch.arange(x.shape[0]) + 1) % x.shape[0]
    return x[i] + x


def reversed_index(x: T) -> T:
    i = x.shape[0] - 1 - torch.arange(x.shape[0])
    return x[i] * 2


def floor_divided(x: T) -> T:
    i = torch.arange(x.numel()) // x.shape[1]
    return i.view(x.shape) + x


def remainders(x: T) -> T:
    i = torch.arange(x.numel()) % x.shape[0]
    return i + x.flatten()


def compare_with_size(x: T) -> T:
    i = torch.arange(10)
    return (i < x.shape[0]).float() * x[0, 0]


def equals_size(x: T) -> T:
    i = torch.arange(10)
    return (i == x.shape[0] - 1).long() + i


def power_of_size(x: T) -> T:
    return x.abs() ** (1 / x.shape[0])


def size_to_tensor(x: T) -> T:
    return torch.pow(x.shape[0], x.sigmoid())


def tensor_of_size(x: T) -> T:
    return x * torch.tensor(x.shape[0])


def tensor_of_sizes(x: T) -> T:
    return x.sum() * torch.tensor([x.shape[0], x.shape[1]], dtype=torch.float32)


def tensor_of_shape(x: T) -> T:
    return torch.tensor(x.shape)


def as_tensor_of_float(x: T) -> T:
    return x / torch.as_tensor(math.sqrt(x.shape[0]))


def new_tensor_of_size(x: T) -> T:
    return x / x.new_tensor(float(x.shape[0]))


def scalar_tensor_of_size(x: T) -> T:
    return x + torch.scalar_tensor(x.shape[0])


def threshold_by_size(x: T) -> T:
    return F.threshold(x, 1 / x.shape[0], x.shape[0])


def hardtanh_by_size(x: T) -> T:
    return F.hardtanh(x, -1 / x.shape[0], 1 / x.shape[0])


def leaky_by_size(x: T) -> T:
    return F.leaky_relu(x, 1 / x.shape[0])


def elu_by_size(x: T) -> T:
    return F.elu(x, 1 / x.shape[0])


def softplus_by_size(x: T) -> T:
    return F.softplus(x, 1 / x.shape[0])


def eps_by_size(x: T) -> T:
    return F.layer_norm(x, (16,), eps=1 / x.shape[0])


def norm_by_size(x: T) -> T:
    return F.normalize(x, dim=0, eps=1 / x.shape[0])


def smooth_by_size(x: T) -> T:
    return F.smooth_l1_loss(x, x * 2, beta=1 / x.shape[0])


def scale_of_attention(x: T) -> T:
    q = x.view(1, 2, x.shape[0], 8)
    return F.scaled_dot_product_attention(q, q, q, scale=1 / math.log(x.shape[0] + 1))


def log_scaled_attention(x: T) -> T:
    q = x.view(1, 2, x.shape[0], 8) * math.log(x.shape[0], 512)
    return F.scaled_dot_product_attention(q, q, q)


def baddbmm_by_size(x: T) -> T:
    y = x[None]
    return torch.baddbmm(torch.zeros(1, 1, 1), y, y.transpose(1, 2), beta=0, alpha=1 / x.shape[0])


def addmm_by_size(x: T) -> T:
    return torch.addmm(x[0], x, x.new_ones(16, 16), beta=x.shape[0], alpha=1 / x.shape[0])


def rounded_half(x: T) -> T:
    return x[: int(x.shape[0] * 0.5)] + 1


def rounded(x: T) -> T:
    return x[: round(x.shape[0] / 3) + 1] + 1


def ceiled(x: T) -> T:
    return x[: math.ceil(x.shape[0] / 3)] + 1


def floored(x: T) -> T:
    return x.new_zeros(math.floor(x.shape[0] * 1.5), 2) + 1


def trunc_of_float(x: T) -> T:
    return x.new_ones(int(x.shape[0] / 2) + 1) * 2


def float_arithmetic(x: T) -> T:
    n = float(x.shape[0])
    return x * (n / (n + 1.0)) - n**0.5


def min_of_sizes(x: T) -> T:
    k = min(x.shape[0], 5)
    return x[:k] * k


def max_of_sizes(x: T) -> T:
    k = max(x.shape[0], 20)
    return F.pad(x, (0, 0, 0, k - x.shape[0]))


def min_of_both(x: T, y: T) -> T:
    k = min(x.shape[0], y.shape[0])
    return x[:k] + y[:k]


def log2_of_size(x: T) -> T:
    return x * math.log2(x.shape[0])


def bits(x: T) -> T:
    return x * (x.shape[0] & -2) + (x.shape[0] >> 1)


# --------------------------------------------------------------------------------------------------- ranges and ends


def arange_end(x: T) -> T:
    return torch.arange(x.shape[0]) + x[:, 0]


def arange_float_end(x: T) -> T:
    return torch.arange(float(x.shape[0])) + x[:, 0]


def arange_dtype(x: T) -> T:
    return torch.arange(x.shape[0], dtype=torch.float32) / x.shape[0]


def arange_from_size(x: T) -> T:
    return torch.arange(x.shape[0], x.shape[0] * 2) * 2


def arange_down(x: T) -> T:
    return torch.arange(x.shape[0] - 1, -1, -1) * 2


def arange_step(x: T) -> T:
    return torch.arange(0, x.shape[0], 2) + 1


def arange_float_step(x: T) -> T:
    return torch.arange(0, x.shape[0], 0.5) + 1


def arange_centered(x: T) -> T:
    return torch.arange(-(x.shape[0] // 2), x.shape[0] - x.shape[0] // 2) * 2


def linspace_steps(x: T) -> T:
    return torch.linspace(0, 1, x.shape[0]) + x[:, 0]


def linspace_end(x: T) -> T:
    return torch.linspace(0, x.shape[0] - 1, x.shape[0]) + x[:, 0]


def linspace_half(x: T) -> T:
    n = x.shape[0]
    return torch.linspace(0.5 / n, 1 - 0.5 / n, n) * x[:, 0]


def logspace_steps(x: T) -> T:
    return torch.logspace(0, 1, x.shape[0]) + x[:, 0]


def eye_of_size(x: T) -> T:
    return torch.eye(x.shape[0]) @ x


def rope(x: T) -> T:
    t, d = x.shape
    inverse = 1.0 / (10000 ** (torch.arange(0, d, 2).float() / d))
    angles = torch.outer(torch.arange(t).float(), inverse)
    a, b = x[:, 0::2], x[:, 1::2]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


ROPE_TABLE = torch.linspace(0, 1, 256 * 16).view(256, 16)


def rope_sliced(x: T) -> T:
    return x * ROPE_TABLE[: x.shape[0]].cos() + x.flip(1) * ROPE_TABLE[: x.shape[0]].sin()


def alibi(x: T) -> T:
    t = x.shape[0]
    slopes = torch.tensor([0.5, 0.25])
    distance = torch.arange(t)[None, :] - torch.arange(t)[:, None]
    return (x @ x.t())[None] + slopes[:, None, None] * distance[None]


def causal_triu(x: T) -> T:
    n = x.shape[0]
    mask = torch.triu(torch.ones(n, n), diagonal=1).bool()
    return (x @ x.t()).masked_fill(mask, float("-inf")).softmax(-1)


def causal_full(x: T) -> T:
    n = x.shape[0]
    mask = torch.full((n, n), float("-inf")).triu(1)
    return (x @ x.t() + mask).softmax(-1)


def causal_window(x: T) -> T:
    n = x.shape[0]
    i = torch.arange(n)
    mask = (i[:, None] >= i[None]) & (i[:, None] - i[None] < n // 2 + 1)
    return (x @ x.t()).masked_fill(~mask, float("-inf")).softmax(-1)


def triu_by_size(x: T) -> T:
    return torch.triu(x, diagonal=x.shape[0] // 2)


def buckets(x: T) -> T:
    t, many, most = x.shape[0], 16, 64
    position = torch.arange(t)[None] - torch.arange(t)[:, None]
    out = (position > 0).long() * many
    position = position.abs()
    exact = many // 2
    large = exact + (torch.log(position.float().clamp(min=1) / exact) / math.log(most / exact) * (many - exact)).long()
    large = torch.min(large, torch.full_like(large, many - 1))
    return x @ x.t() + (out + torch.where(position < exact, position, large))


def padding_mask(x: T) -> T:
    lengths = torch.tensor([1, 2, 2])
    return (torch.arange(x.shape[0])[None] < lengths[:, None]).float() @ x


def tril_indices_of_size(x: T) -> T:
    i, j = torch.tril_indices(x.shape[0], x.shape[0])
    return (x @ x.t())[i, j]


def triu_indices_of_size(x: T) -> T:
    i = torch.triu_indices(x.shape[0], x.shape[0], offset=1)
    return (x @ x.t())[i[0], i[1]]


def grid(x: T) -> T:
    n = x.shape[0]
    y, z = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    return torch.stack([y, z], -1).float() / n


def cartesian(x: T) -> T:
    return torch.cartesian_prod(torch.arange(x.shape[0]), torch.arange(3))


def one_hot_of_size(x: T) -> T:
    return F.one_hot(torch.arange(x.shape[0]), x.shape[0])


def one_hot_of_argmax(x: T) -> T:
    return F.one_hot(x.argmax(0), x.shape[0]) * 2


# ----------------------------------------------------------------------------------------------- cuts, pads and views


def split_half(x: T) -> T:
    a, b = torch.split(x, [x.shape[0] // 2, x.shape[0] - x.shape[0] // 2])
    return torch.cat([b, a])


def split_by_half(x: T) -> T:
    a, b = torch.split(x, x.shape[0] // 2)
    return a * b


def chunk_two(x: T) -> T:
    a, b = x.chunk(2)
    return a * b


def chunk_three_of_odd(x: T) -> T:
    parts = x.chunk(2)
    return parts[0][: parts[1].shape[0]] * parts[1]


def tensor_split_two(x: T) -> T:
    a, b = torch.tensor_split(x, 2)
    return a.sum(0) * b.sum(0)


def tensor_split_three(x: T) -> T:
    a, b, c = torch.tensor_split(x, 3)
    return a.sum(0) * b.sum(0) - c.sum(0)


def chunk_three(x: T) -> T:
    return torch.cat([part * (i + 1) for i, part in enumerate(x.chunk(3))])


def pad_to_multiple(x: T) -> T:
    return F.pad(x, (0, 0, 0, -x.shape[0] % 8)) * 2


def pad_and_window(x: T) -> T:
    n = x.shape[0]
    x = F.pad(x, (0, 0, 0, (8 - n % 8) % 8))
    return x.view(x.shape[0] // 8, 8, 16).sum(1)


def blocks(x: T) -> T:
    return x.view(x.shape[0] // 8, 8, -1).mean(1)


def roll_by_half(x: T) -> T:
    return torch.roll(x, x.shape[0] // 2, 0)


def roll_flat(x: T) -> T:
    return torch.roll(x, x.shape[0] + 1)


def roll_constant(x: T) -> T:
    return torch.roll(x, (-3, 2), (0, 1)) + x


def fftshift(x: T) -> T:
    return torch.fft.fftshift(x, 0) * 2


def topk_half(x: T) -> T:
    return x.topk(x.shape[0] // 2, dim=0).values


def topk_some(x: T) -> T:
    return x.topk(min(5, x.shape[0]), dim=0).values + 1


def kthvalue_half(x: T) -> T:
    return x.kthvalue((x.shape[0] + 1) // 2, 0).values


def median_by_sort(x: T) -> T:
    return x.sort(0).values[(x.shape[0] - 1) // 2]


def median(x: T) -> T:
    return x.median(0).values


def quantile(x: T) -> T:
    return torch.quantile(x, 0.5, dim=0)


def argsort_inverse(x: T) -> T:
    order = x[:, 0].argsort()
    back = torch.empty_like(order)
    back[order] = torch.arange(x.shape[0])
    return x[order][back]


def diagonals(x: T) -> T:
    return (x @ x.t()).diagonal() + x.shape[0]


def off_diagonal(x: T) -> T:
    n = x.shape[0]
    m = x @ x.t()
    return m.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


def trace(x: T) -> T:
    return (x @ x.t()).trace() / x.shape[0]


def einsum(x: T) -> T:
    return torch.einsum("ni,mi->nm", x, x) / x.shape[0]


def cdist(x: T) -> T:
    return torch.cdist(x, x + 1)


def pairwise(x: T) -> T:
    return (x[:, None] - x[None]).pow(2).sum(-1).sum() / (x.shape[0] * (x.shape[0] - 1))


def cumulative_mean(x: T) -> T:
    return x.cumsum(0) / torch.arange(1, x.shape[0] + 1)[:, None]


def unfold(x: T) -> T:
    return x.unfold(0, 2, 1).sum(-1)


def unfold_size(x: T) -> T:
    return x.unfold(0, x.shape[0] // 2 + 1, 1).mean(-1)


def unfold_strided(x: T) -> T:
    return x.t().unfold(1, 2, 2) * 2


def repeat_by_size(x: T) -> T:
    return x[0].repeat(x.shape[0], 1) + x


def repeat_interleaved(x: T) -> T:
    return x.repeat_interleave(2, 0) + 1


def expand_to(x: T) -> T:
    return x[:1].expand(x.shape[0] * 2, -1) + 1


def as_strided_windows(x: T) -> T:
    return x.as_strided((x.shape[0] - 1, 32), (16, 1)) + 1


def narrowed(x: T) -> T:
    return x.narrow(0, x.shape[0] // 2, x.shape[0] - x.shape[0] // 2) * 2


def last_index(x: T) -> T:
    return x[x.shape[0] - 1] * 2


def middle(x: T) -> T:
    return x[x.shape[0] // 2] + 1


def set_middle(x: T) -> T:
    y = x.clone()
    y[x.shape[0] // 2] = 0
    y[x.shape[0] // 2 :, :3] += 1
    return y


def every_other(x: T) -> T:
    return x[::2] + 1


def strided_both(x: T) -> T:
    return x[1::3, ::2] * 2


def scatter_rows(x: T) -> T:
    i = (x[:, 0].abs() * 10).long() % x.shape[0]
    return torch.zeros(x.shape[0], 16).index_add(0, i, x)


def histogram_of_size(x: T) -> T:
    i = (x[:, 0].abs() * 10).long() % x.shape[0]
    return torch.zeros(x.shape[0]).scatter_add(0, i, x[:, 1])


def flatten_batches(x: T) -> T:
    b, t, c = x.shape
    offset = torch.arange(b)[:, None] * t
    i = torch.zeros(b, 2, dtype=torch.long) + offset
    return x.reshape(b * t, c)[i.view(-1)].view(b, 2, c)


def searchsorted(x: T) -> T:
    return torch.searchsorted(x[:, 0].sort().values, x[:, 1])


def bucketize(x: T) -> T:
    return torch.bucketize(x, torch.linspace(-1, 1, x.shape[0]))


def fft(x: T) -> T:
    return torch.fft.rfft(x, dim=0).abs() / x.shape[0]


def irfft(x: T) -> T:
    return torch.fft.irfft(torch.fft.rfft(x, dim=0), n=x.shape[0], dim=0)


def fftfreq(x: T) -> T:
    return torch.fft.fftfreq(x.shape[0]) * 2


def positional_encoding(x: T) -> T:
    n, d = x.shape
    position = torch.arange(n).unsqueeze(1)
    div = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
    pe = torch.zeros(n, d)
    pe[:, 0::2] = torch.sin(position * div)
    pe[:, 1::2] = torch.cos(position * div)
    return x + pe


def relative_shift(x: T) -> T:
    n = x.shape[0]
    scores = F.pad(x @ x.t(), (1, 0)).view(n + 1, n)[1:]
    return scores * 2


def hann(x: T) -> T:
    return torch.hann_window(x.shape[0])[:, None] * x


# ---------------------------------------------------------------------------------------------------- Python's own


def branch_on_size(x: T) -> T:
    if x.shape[0] > 40:
        return x * 2
    return x + 1


def key_from_size(x: T) -> T:
    table = {"small": 1.0, "large": 2.0}
    return x * table["large" if x.shape[0] > 40 else "small"]


def formatted(x: T) -> tuple[T, str]:
    return x * 2, f"{x.shape[0]} rows, {x.shape[0] / 2:.1f} pairs"


def assertion(x: T) -> T:
    assert x.shape[0] > 1, f"too few rows: {x.shape[0]}"
    return x * 2


def loop_over_blocks(x: T) -> T:
    for i in range(x.shape[0] // 64):
        x = x + i
    return x


def shape_arithmetic(x: T) -> T:
    shape = [*x.shape[:-1], 4, x.shape[-1] // 4]
    return x.reshape(shape).sum(-1)


def shape_product(x: T) -> T:
    return x.reshape(math.prod(x.shape)) * math.prod(x.shape)


def shape_numel(x: T) -> T:
    return x.sum() / x.shape.numel()


def flattened_size(x: T) -> T:
    return x.view(-1, x.size(1) // 2) / x.size(0)


def mse(x: T) -> T:
    return F.mse_loss(x, x * 2, reduction="sum") / x.shape[0]


def cross_entropy_of_rows(x: T) -> T:
    return F.cross_entropy(x @ x.t() / 16, torch.arange(x.shape[0]))


def clip_loss(x: T, y: T) -> T:
    logits = F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).t()
    labels = torch.arange(x.shape[0])
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def label_smoothing(x: T) -> T:
    n = x.shape[1]
    return F.cross_entropy(x.t(), torch.zeros(16, dtype=torch.long), label_smoothing=1 / (n + 1))


def rank_of(x: T) -> T:
    return x * x.dim() + x.size()[0]


def length(x: T) -> T:
    return x / len(x)


def divmod_of_size(x: T) -> T:
    q, r = divmod(x.shape[0], 3)
    return x * q + r


def sum_of_shape(x: T) -> T:
    return x * sum(x.shape)


def comparison_of_sizes(x: T, y: T) -> T:
    return x.sum(0) if x.shape[0] >= y.shape[0] else y.sum(0)


def window_of_cache(x: T) -> T:
    return x[-5:] * 2


def window_of_keys(x: T) -> T:
    keys = torch.cat([x, x[:1]])[-5:]
    return keys.view(-1, 2, 8).transpose(0, 1) @ torch.ones(8, 2)


ROWS = of(lambda n: (n, 16))
LONGER = of(lambda n: (n + 9, 16))  # so that no part of it has one row or none
EIGHTS = of(lambda n: (8 * n, 16))
TWO = of(lambda n: (n, 16), lambda n: (n + 3, 16))
PAIRED = of(lambda n: (n, 16), lambda n: (n, 16))
EVEN = of(lambda n: (2 * n, 16))
BATCH = of(lambda n: (n, 5, 16))
_TAKES: dict[Inputs, tuple[Callable[..., Any], ...]] = {
    ROWS: (
        *(full_of_size, full_float_of_size, full_of_root, scaled_scores, entropy, manual_variance, unbiased),
        *(weighted, addcmul_by_size, addcdiv_by_size, lerp_by_size, add_alpha, sub_alpha, fill),
        *(masked_fill_by_size, masked_fill_by_float, where_size, where_float, pad_value, pad_value_of_size),
        *(in_place_scale, index_clamp, index_clamp_max, wrapped_index, reversed_index, floor_divided, remainders),
        *(compare_with_size, equals_size, power_of_size, size_to_tensor, tensor_of_size, tensor_of_sizes),
        *(tensor_of_shape, as_tensor_of_float, new_tensor_of_size, scalar_tensor_of_size, threshold_by_size),
        *(hardtanh_by_size, leaky_by_size, elu_by_size, softplus_by_size, eps_by_size, norm_by_size),
        *(smooth_by_size, scale_of_attention, log_scaled_attention, baddbmm_by_size, addmm_by_size, floored),
        *(trunc_of_float, float_arithmetic, min_of_sizes, max_of_sizes, log2_of_size, bits, arange_end),
        *(arange_float_end, arange_dtype, arange_from_size, arange_down, arange_float_step, arange_centered),
        *(linspace_steps, linspace_end, linspace_half, logspace_steps, eye_of_size, rope, rope_sliced, alibi),
        *(causal_triu, causal_full, triu_by_size, buckets, tril_indices_of_size, triu_indices_of_size, grid),
        *(cartesian, one_hot_of_size, one_hot_of_argmax, pad_to_multiple, roll_by_half, roll_flat, roll_constant),
        *(fftshift, topk_some, kthvalue_half, median_by_sort, median, quantile, argsort_inverse, diagonals),
        *(trace, einsum, cdist, pairwise, cumulative_mean, unfold_size, unfold_strided, repeat_by_size),
        *(repeat_interleaved, expand_to, last_index, middle, scatter_rows, histogram_of_size),
        *(searchsorted, bucketize, fft, irfft, fftfreq, positional_encoding, relative_shift, hann),
        *(branch_on_size, key_from_size, formatted, assertion, loop_over_blocks, shape_arithmetic, shape_product),
        *(shape_numel, flattened_size, mse, cross_entropy_of_rows, label_smoothing, rank_of, length),
        *(divmod_of_size, sum_of_shape),
    ),
    LONGER: (
        set_middle,
        *(rounded_half, rounded, ceiled, arange_step, split_half, chunk_three_of_odd, tensor_split_two),
        *(tensor_split_three, chunk_three),
        *(topk_half, off_diagonal, unfold, as_strided_windows, narrowed, every_other, strided_both),
        *(window_of_cache, window_of_keys, pad_and_window, causal_window),
    ),
    EIGHTS: (blocks,),
    EVEN: (split_by_half, chunk_two),
    TWO: (min_of_both, comparison_of_sizes),
    PAIRED: (clip_loss,),
    BATCH: (flatten_batches,),
}
PROGRAMS = {f.__name__: (f, make) for make, takes in _TAKES.items() for f in takes} | size_value_images.PROGRAMS
# How many compiles the program itself asks for: a branch or a loop of its own takes another way at some size.
WAYS = {
    "branch_on_size": 2,
    "key_from_size": 2,
    "loop_over_blocks": 2,
    "min_of_sizes": 2,
    "topk_some": 2,
    "chunk_three_of_odd": 2,
    "cdist": 2,
    "triu_indices_of_size": 2,
    "unfold_size": 2,
    "tensor_split_two": 2,
    "tensor_split_three": 2,
    "chunk_three": 2,
}
# What is still compiled for each size (docs/limits.md).
ONCE_A_SIZE = {"smooth_by_size"}
