"""Functions of torch whose numbers its parser wants as such, written with others that take sizes.

While a call is captured, the interpreter calls these where a number among the arguments changes from call to call
(src/frame/interpret/call_numbers.cpp), by the name that the function has in C. NotImplemented: torch's own way, for
which the numbers are this call's. That is decided before any operator runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

_Tensor = torch.Tensor
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTS = (torch.int64, torch.int32)


def _is_number(*numbers: Any) -> bool:
    return all(type(n) is int or type(n) is float for n in numbers)


def _is_count(n: Any) -> bool:
    return type(n) is int and n >= 0


def _float_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    """None: not one that is computed here."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return dtype if dtype in _FLOATS else None


def _linspace(start: float, end: float, steps: int, device: Any) -> _Tensor:
    """Symmetric from both ends, as eager's; in double precision."""
    at = torch.arange(steps, dtype=torch.float64, device=device)
    step = (end - start) / max(steps - 1, 1)
    from_start, from_end = start + at * step, end - (steps - 1 - at) * step
    return torch.where(at < max(steps // 2, 1), from_start, from_end)


def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    kind = _float_dtype(dtype)
    if rest or kind is None or not _is_number(start, end) or not _is_count(steps):
        return NotImplemented
    return _linspace(start, end, steps, device).to(kind)


def logspace(
    start: Any, end: Any, steps: Any, base: Any = 10.0, *, dtype: Any = None, device: Any = None, **rest: Any
) -> Any:
    kind = _float_dtype(dtype)
    if rest or kind is None or not _is_number(start, end, base) or not _is_count(steps) or base <= 0:
        return NotImplemented
    return torch.pow(base, _linspace(start, end, steps, device)).to(kind)


def arange(*ends: Any, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    """Where an end or the step is a float, or the step a size: so many, in double precision."""
    if rest or not 1 <= len(ends) <= 3 or not _is_number(*ends):
        return NotImplemented
    start, end, step = (0, *ends, 1) if len(ends) == 1 else (*ends, 1) if len(ends) == 2 else ends
    whole = all(type(n) is int for n in ends)
    if whole:
        # (Rules take sizes as ends.)
        if len(ends) < 3 or dtype not in (None, *_INTS, torch.float32, torch.float64) or step <= 0 or end < start:
            return NotImplemented
        at = torch.arange((end - start + step - 1) // step, dtype=torch.int64, device=device)
        return (at * step + start).to(torch.int64 if dtype is None else dtype)
    kind = _float_dtype(dtype)
    if kind is None or step <= 0 or end < start:
        return NotImplemented
    at = torch.arange(math.ceil((end - start) / step), dtype=torch.float64, device=device)
    return (at * step + start).to(kind)


def _window(
    count: Any, periodic: Any, dtype: Any, device: Any, rest: Any, formula: Callable[[_Tensor], _Tensor]
) -> Any:
    """Of the angles 0 to 2 pi, which a periodic one does not reach."""
    kind = _float_dtype(dtype)
    if rest or kind is None or not _is_count(count) or type(periodic) is not bool or count < 2:
        return NotImplemented
    at = torch.arange(count, dtype=torch.float64, device=device)
    return formula(at * (2 * math.pi / (count if periodic else count - 1))).to(kind)


def hann_window(n: Any, periodic: Any = True, *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    return _window(n, periodic, dtype, device, rest, lambda at: 0.5 - 0.5 * at.cos())


def hamming_window(
    n: Any,
    periodic: Any = True,
    alpha: Any = 0.54,
    beta: Any = 0.46,
    *,
    dtype: Any = None,
    device: Any = None,
    **rest: Any,
) -> Any:
    return _window(n, periodic, dtype, device, rest, lambda at: alpha - beta * at.cos())


def blackman_window(n: Any, periodic: Any = True, *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    return _window(n, periodic, dtype, device, rest, lambda at: 0.42 - 0.5 * at.cos() + 0.08 * (2 * at).cos())


def bartlett_window(n: Any, periodic: Any = True, *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    return _window(n, periodic, dtype, device, rest, lambda at: 1 - (at / math.pi - 1).abs())


def fft_fftfreq(n: Any, d: Any = 1.0, *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    kind = _float_dtype(dtype)
    if rest or kind is None or not _is_count(n) or not _is_number(d) or n == 0:
        return NotImplemented
    at = torch.arange(n, device=device)
    return torch.where(at < (n + 1) // 2, at, at - n).to(kind) * (1.0 / (n * d))


def fft_rfftfreq(n: Any, d: Any = 1.0, *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    kind = _float_dtype(dtype)
    if rest or kind is None or not _is_count(n) or not _is_number(d) or n == 0:
        return NotImplemented
    return torch.arange(n // 2 + 1, device=device).to(kind) * (1.0 / (n * d))


def _triangle(rows: int, device: Any) -> tuple[_Tensor, _Tensor, _Tensor]:
    """Row and column of each element of a triangle of so many rows, of 1, 2, 3 ... elements."""
    at = torch.arange(rows * (rows + 1) // 2, device=device)
    row = (((at.to(torch.float64) * 8 + 1).sqrt() - 1) / 2).to(torch.int64)  # or beside it, where the root was rounded
    row = torch.where(row * (row + 1) // 2 > at, row - 1, row)
    row = torch.where((row + 1) * (row + 2) // 2 <= at, row + 1, row)
    return at, row, at - row * (row + 1) // 2


def tril_indices(
    row: Any, col: Any, offset: Any = 0, *, dtype: Any = torch.int64, device: Any = None, **rest: Any
) -> Any:
    if rest or dtype is not torch.int64 or not _is_count(row) or not _is_count(col) or type(offset) is not int:
        return NotImplemented
    rows = row + offset
    if offset > 0 or rows < 1 or rows > col:
        return NotImplemented
    _, i, j = _triangle(rows, device)
    return torch.stack([i - offset, j])


def triu_indices(
    row: Any, col: Any, offset: Any = 0, *, dtype: Any = torch.int64, device: Any = None, **rest: Any
) -> Any:
    if rest or dtype is not torch.int64 or not _is_count(row) or not _is_count(col) or type(offset) is not int:
        return NotImplemented
    rows = col - offset
    if offset < 0 or rows < 1 or rows > row:
        return NotImplemented
    _, i, j = _triangle(rows, device)  # the same triangle, from its last element
    return torch.stack([rows - 1 - i, col - 1 - j]).flip(1)


def one_hot(tensor: Any, num_classes: Any = -1) -> Any:
    """The scatter's own bounds check finds what is no class."""
    if not isinstance(tensor, _Tensor) or tensor.dtype is not torch.int64 or not _is_count(num_classes):
        return NotImplemented
    shape = [*tensor.shape, num_classes]
    return torch.zeros(shape, dtype=torch.int64, device=tensor.device).scatter(-1, tensor.unsqueeze(-1), 1)


def pad(input: Any, pad: Any, mode: Any = "constant", value: Any = None) -> Any:
    if mode != "constant" or not _is_number(value):
        return NotImplemented
    if isinstance(input, _Tensor) and not input.dtype.is_signed and input.dtype is not torch.bool:
        return NotImplemented  # torch's own takes the number as a float, and a negative one of those does not wrap
    return torch.constant_pad_nd(input, pad, value)


def unfold(self: Any, dimension: Any, size: Any, step: Any) -> Any:
    """As a view of the same memory."""
    if not isinstance(self, _Tensor) or type(dimension) is not int or not _is_count(size) or not _is_count(step):
        return NotImplemented
    rank = self.dim()
    dim = dimension + rank if dimension < 0 else dimension
    if rank == 0 or not 0 <= dim < rank or step < 1 or size > self.shape[dim]:
        return NotImplemented
    shape, strides = list(self.shape), list(self.stride())
    shape[dim] = (shape[dim] - size) // step + 1
    strides.append(strides[dim])
    strides[dim] *= step
    return self.as_strided([*shape, size], strides, self.storage_offset())


def _pooled(input: Any, rank: int, kernel: Any, stride: Any, padding: Any) -> list[int] | None:
    """The dimensions that a window spans, where it is a single place along the others. None: it is another one."""
    if not isinstance(input, _Tensor) or input.dtype not in _FLOATS or input.dim() not in (rank + 1, rank + 2):
        return None
    if torch.is_grad_enabled() and input.requires_grad and not input.is_contiguous():
        return None  # the gradient would lie otherwise
    lists = []
    for given in (kernel, stride, padding):
        items = [given] if type(given) is int else list(given) if isinstance(given, (tuple, list)) else []
        lists.append([items[0] for _ in range(rank)] if len(items) == 1 else items)
    windows, steps, pads = lists
    if len(windows) != rank or len(pads) != rank or any(type(p) is not int or p != 0 for p in pads):
        return None
    spanned = []
    for i in range(rank):
        dim = i - rank
        if type(windows[i]) is not int or windows[i] < 1:
            return None
        if windows[i] == input.shape[dim]:
            spanned.append(dim)
        elif windows[i] != 1 or (steps and steps[i] != 1):
            return None
    return spanned or None


def _avg_pool(rank: int) -> Callable[..., Any]:
    def pool(
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: Any = False,
        count_include_pad: Any = True,
        divisor_override: Any = None,
    ) -> Any:
        """Over a window that is a whole image."""
        spanned = _pooled(input, rank, kernel_size, stride, padding) if divisor_override is None else None
        return NotImplemented if spanned is None else input.mean(spanned, keepdim=True)

    return pool


def _max_pool(rank: int) -> Callable[..., Any]:
    def pool(
        input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: Any = False
    ) -> Any:
        """The first of the largest gets the gradient."""
        apart = [dilation] if type(dilation) is int else dilation
        spanned = _pooled(input, rank, kernel_size, stride, padding) if all(d == 1 for d in apart) else None
        if spanned is None or (len(spanned) > 1 and len(spanned) < rank):
            return NotImplemented
        if len(spanned) == 1:
            return input.max(spanned[0], keepdim=True).values
        return input.flatten(-rank).max(-1).values[(..., *[None] * rank)]

    return pool


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    scale: Any = None,
    enable_gqa: Any = False,
) -> Any:
    """The scale goes with the queries, where that does not round more than eager does."""
    if type(scale) is not float or not isinstance(query, _Tensor) or query.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    if torch.is_autocast_enabled(query.device.type) or type(dropout_p) is not float:
        return NotImplemented
    return torch.nn.functional.scaled_dot_product_attention(
        query * scale, key, value, attn_mask, dropout_p, is_causal, scale=1.0, enable_gqa=enable_gqa
    )


def layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5, cudnn_enable: Any = True
) -> Any:
    if type(eps) is not float or not isinstance(input, _Tensor) or input.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    rank = len(normalized_shape) if isinstance(normalized_shape, Sequence) else 0
    if not 0 < rank <= input.dim() or any(a != b for a, b in zip(input.shape[-rank:], normalized_shape, strict=True)):
        return NotImplemented
    dims = list(range(-rank, 0))
    centered = input - input.mean(dims, keepdim=True)
    out = centered * torch.rsqrt((centered * centered).mean(dims, keepdim=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


BY_NAME: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        *(linspace, logspace, arange, hann_window, hamming_window, blackman_window, bartlett_window),
        *(fft_fftfreq, fft_rfftfreq, tril_indices, triu_indices, one_hot, pad, unfold),
        *(scaled_dot_product_attention, layer_norm),
    )
} | {
    **{f"avg_pool{rank}d": _avg_pool(rank) for rank in (1, 2, 3)},
    **{f"max_pool{rank}d": _max_pool(rank) for rank in (1, 2, 3)},
}
