"""What torch's CUDA generator gives to each element, in numpy: the reference of the fused random numbers.

Held against eager on a GPU by tests/gpu/test_gpu_random.py."""

from __future__ import annotations

import numpy as np
import torch

M32 = np.uint64(0xFFFFFFFF)
S32 = np.uint64(32)


def philox(seed: int, counter: np.ndarray, thread: np.ndarray) -> list[np.ndarray]:
    k0, k1 = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32 & 0xFFFFFFFF)
    c = [counter & M32, counter >> S32, thread, np.zeros_like(thread)]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> S32) ^ c[1] ^ k0, b & M32, (a >> S32) ^ c[3] ^ k1, a & M32]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & M32, (k1 + np.uint64(0xBB67AE85)) & M32
    return c


def grid(numel: int, most: int) -> int:
    return min(most, -(-numel // 256) * 256)


def increment(numel: int, most: int) -> int:
    return ((numel - 1) // (grid(numel, most) * 4) + 1) * 4


def calls(numel: int, width: int, most: int, seed: int, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """The four numbers of each element's call, and which of them is the element's."""
    threads, i = np.uint64(grid(numel, most)), np.arange(numel, dtype=np.uint64)
    one, four, width64 = np.uint64(1), np.uint64(4), np.uint64(width)
    if width == 1:
        thread, group = i % threads, i // threads
        call, lane = group // four, group % four
    else:
        load = i // width64
        thread = load % threads
        call = load // threads * max(one, width64 // four) + i % width64 // four
        lane = i % width64 % four
    return np.stack(philox(seed, np.uint64(offset // 4) + call, thread)), lane.astype(np.int64)


def in_unit(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)).astype(np.float32)


def uniform(numel: int, width: int, most: int, seed: int, offset: int) -> torch.Tensor:
    bits, lane = calls(numel, width, most, seed, offset)
    return torch.from_numpy(in_unit(np.take_along_axis(bits, lane[None], 0)[0]))


def normal(numel: int, most: int, seed: int, offset: int) -> torch.Tensor:
    """In double: the device's sine and cosine are near it."""
    bits, lane = calls(numel, 1, most, seed, offset)
    first = lane // 2 * 2
    radius = np.sqrt(-2 * np.log(in_unit(np.take_along_axis(bits, first[None], 0)[0]).astype(np.float64)))
    angle = (np.take_along_axis(bits, first[None] + 1, 0)[0].astype(np.float64) + 0.5) * 2 * np.pi / 2**32
    return torch.from_numpy(np.where(lane % 2, np.cos(angle), np.sin(angle)) * radius)


def dropout_width(dtype: torch.dtype, numel: int) -> int:
    width = min(8, 16 // dtype.itemsize)
    while width > 1 and numel % width:
        width //= 2
    return width


def kept(x: torch.Tensor, p: float, most: int, seed: int, offset: int) -> torch.Tensor:
    """native_dropout's mask, for x dense in memory."""
    u = uniform(x.numel(), dropout_width(x.dtype, x.numel()), most, seed, offset)
    keep = 1 - p if x.dtype == torch.float64 else float(np.float32(1 - p))
    return (u.double() < keep).as_strided(x.shape, x.stride())
