"""More functions of numpy's for _arrays.py: linear algebra, transforms, order statistics, padding, picking.

A row gives numpy's shadow its dtype, shape and strides, and torch's operators the values. No function whose result's
shape follows from what the array holds is here, since a shadow holds other numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from flashover._arrays import (
    Array,
    _as,
    _axes,
    _by_numpy,
    _dtype,
    _elsewhere,
    _is_array,
    _is_plain,
    _of,
    _operand,
    _result,
    _shadow,
    _stop,
    _tensor,
    _try,
)


def _arrays_of(kinds: str, *operands: Any) -> list[Array]:
    """Operands that are arrays of such numbers, no scalars."""
    found = [_operand(o) for o in operands]
    for a in found:
        if not _is_array(a) or isinstance(_shadow(a), np.generic) or _shadow(a).dtype.kind not in kinds:
            _stop("an operand that is no array of such numbers")
    return found


def _int(value: Any, what: str) -> int:
    return value if type(value) is int else _stop(f"such an argument {what} of a function of numpy")


# ---- linear algebra ----


def _regular(shadow: np.ndarray) -> np.ndarray:
    """An invertible array in the place of a shadow full of ones."""
    if shadow.ndim < 2 or shadow.shape[-1] != shadow.shape[-2]:
        return shadow  # numpy raises
    return np.array(np.broadcast_to(np.eye(shadow.shape[-1], dtype=shadow.dtype), shadow.shape))


def _square(f: Callable[..., Any], compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A function of square matrices. (A singular one is torch's error when it runs, and the call is numpy's again.)"""

    def of_square(a: Any) -> Any:
        (a,) = _arrays_of("f", a)
        shadow = _by_numpy(f, _regular(_shadow(a)))
        return _result(_try(compute, _tensor(a)), shadow, (a,))

    _of(f)(of_square)


_square(np.linalg.inv, torch.linalg.inv)
_square(np.linalg.det, torch.linalg.det)
_square(np.linalg.cholesky, torch.linalg.cholesky)


@_of(np.linalg.solve)
def _solve(a: Any, b: Any) -> Any:
    a, b = _arrays_of("f", a, b)
    if _shadow(a).dtype != _shadow(b).dtype or _shadow(b).ndim not in (1, _shadow(a).ndim):
        _stop("such a numpy.linalg.solve")
    shadow = _by_numpy(np.linalg.solve, _regular(_shadow(a)), _shadow(b))
    return _result(_try(torch.linalg.solve, _tensor(a), _tensor(b)), shadow, (a, b))


@_of(np.trace)
def _trace(a: Any, offset: Any = 0, axis1: Any = 0, axis2: Any = 1) -> Any:
    (a,) = _arrays_of("fiub", a)
    if _shadow(a).dtype == np.float16:
        _stop("a trace in float16")
    shadow = _by_numpy(np.trace, _shadow(a), offset, axis1, axis2)
    diagonal = _try(torch.diagonal, _tensor(a), offset, axis1, axis2)
    return _result(diagonal.to(_dtype(shadow.dtype)).sum(-1), shadow, (a,))


@_of(np.diag)
def _diag(v: Any, k: Any = 0) -> Any:
    (a,) = _arrays_of("fiubc", v)
    shadow = _by_numpy(np.diag, _shadow(a), _int(k, "k"))
    t = _tensor(a)
    return _result(torch.diag(t, k) if t.dim() == 1 else torch.diagonal(t, k), shadow, (a,))


def _of_two(f: Callable[..., Any], compute: Callable[..., torch.Tensor]) -> None:
    """A function of two arrays of floats, which are taken to the dtype of the result."""

    def of_two(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        a, b = _arrays_of("fiu", a, b)
        if not all(_is_plain(v) for v in (*args, *kwargs.values())):
            _stop("an argument that is an array of numpy")
        shadow = _by_numpy(f, _shadow(a), _shadow(b), *args, **kwargs)
        if shadow.dtype.kind != "f" or shadow.dtype == np.float16:
            _stop(f"numpy.{f.__name__} of {shadow.dtype}")
        result = _try(compute, _as(a, shadow.dtype), _as(b, shadow.dtype), *args, **kwargs)
        return _result(result, shadow, (a, b))

    _of(f)(of_two)


def _tensordot(a: torch.Tensor, b: torch.Tensor, axes: Any = 2) -> torch.Tensor:
    if type(axes) is int:
        return torch.tensordot(a, b, axes)
    first, second = ([x] if type(x) is int else list(x) for x in axes)
    return torch.tensordot(a, b, (first, second))


def _cross(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.linalg.cross(a, b) if a.shape[-1] == b.shape[-1] == 3 else _stop("a cross product of two dimensions")


def _convolve(a: torch.Tensor, v: torch.Tensor, mode: str = "full") -> torch.Tensor:
    if mode not in ("full", "valid", "same"):
        _stop("such a mode of numpy.convolve")
    if len(v) > len(a):
        a, v = v, a
    # (Not conv1d, which pads with zeros: times an infinite number they are NaN.)
    at = torch.arange(len(a) + len(v) - 1)[:, None] - torch.arange(len(v))
    terms = a[at.clamp(0, len(a) - 1)] * v
    whole = torch.where((at >= 0) & (at < len(a)), terms, 0).sum(1)
    n = {"full": len(whole), "valid": len(a) - len(v) + 1, "same": len(a)}[mode]
    first = (len(whole) - n) // 2
    return whole[first : first + n]


_of_two(np.tensordot, _tensordot)
_of_two(np.kron, torch.kron)
_of_two(np.cross, _cross)
_of_two(np.convolve, _convolve)


@_of(np.cov)
def _cov(m: Any) -> Any:
    (a,) = _arrays_of("f", m)
    if _shadow(a).ndim > 2:
        _stop("numpy.cov of many dimensions")
    shadow = _by_numpy(np.cov, _shadow(a))
    return _result(torch.cov(_as(a, shadow.dtype)), shadow, (a,))


# ---- transforms ----


def _transform(name: str) -> None:
    f, compute = getattr(np.fft, name), getattr(torch.fft, name)

    def transform(a: Any, *args: Any, **kwargs: Any) -> Any:
        (a,) = _arrays_of("fc", a)
        if not all(_is_plain(v) for v in (*args, *kwargs.values())) or "out" in kwargs:
            _stop("such a transform")
        shadow = _by_numpy(f, _shadow(a), *args, **kwargs)
        given = {"dim" if k in ("axis", "axes") else k: v for k, v in kwargs.items()}
        if _shadow(a).dtype == np.float16:
            _stop("a transform of float16")
        return _result(_try(compute, _tensor(a), *args, **given), shadow, (a,))

    _of(f)(transform)


for _name in ("fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "fftn", "ifftn", "rfft2", "irfft2", "rfftn", "irfftn"):
    _transform(_name)
_elsewhere(np.fft.fftshift, lambda t, axes=None: torch.fft.fftshift(t, axes))
_elsewhere(np.fft.ifftshift, lambda t, axes=None: torch.fft.ifftshift(t, axes))


# ---- order statistics ----


def _between(ordered: torch.Tensor, q: float, dim: int) -> torch.Tensor:
    """The q-quantile along a sorted dim, between two elements as numpy's "linear" has it."""
    n = ordered.shape[dim]
    place = q * (n - 1)
    low = min(int(place), n - 1)
    part = place - low
    a = ordered.select(dim, low)
    if part == 0:  # (infinite elements have no difference)
        return a
    b = ordered.select(dim, min(low + 1, n - 1))
    return a + (b - a) * part if part < 0.5 else b - (b - a) * (1 - part)


def _middle(ordered: torch.Tensor, dim: int) -> torch.Tensor:
    n = ordered.shape[dim]
    low, high = ordered.select(dim, (n - 1) // 2), ordered.select(dim, n // 2)
    return low if n % 2 else (low + high) / 2


def _ordered(a: Array, axis: Any, keepdims: Any) -> tuple[torch.Tensor, int]:
    t = _tensor(a)
    if type(keepdims) is not bool or (axis is not None and type(axis) is not int) or t.numel() == 0:
        _stop("such an order statistic")
    if axis is None:
        t, dim = t.reshape(-1), 0
    else:
        (dim,) = _axes(axis, t.dim())
    return torch.sort(t, dim=dim).values, dim


def _statistic(f: Callable[..., Any], parts: int) -> None:
    """Median (parts is 0), quantile (1) and percentile (100) of floats, for one number q."""

    def statistic(a: Any, *q: Any, axis: Any = None, keepdims: Any = False) -> Any:
        (a,) = _arrays_of("f", a)
        if len(q) != (parts > 0) or not all(type(v) in (int, float) for v in q) or _shadow(a).dtype == np.float16:
            _stop(f"such a numpy.{f.__name__}")
        shadow = _by_numpy(f, _shadow(a), *q, axis=axis, keepdims=keepdims)
        ordered, dim = _ordered(a, axis, keepdims)
        value = _between(ordered, q[0] / parts, dim) if parts else _middle(ordered, dim)
        last = ordered.select(dim, ordered.shape[dim] - 1)
        value = torch.where(torch.isnan(last), last, value)
        return _result(value.reshape(shadow.shape).to(_dtype(shadow.dtype)), shadow, (a,))

    _of(f)(statistic)


_statistic(np.median, 0)
_statistic(np.quantile, 1)
_statistic(np.percentile, 100)


@_of(np.argsort, method="argsort")
def _argsort(a: Any, axis: Any = -1, kind: Any = None, **kwargs: Any) -> Any:
    # (numpy leaves the order of equal elements open, but for the stable kinds.)
    (a,) = _arrays_of("fiu", a)
    if kwargs.keys() - {"stable"} or kind not in (None, "quicksort", "stable", "mergesort", "heapsort"):
        _stop("such an argsort")
    shadow = _by_numpy(np.argsort, _shadow(a), axis)
    t, dim = (_tensor(a).reshape(-1), 0) if axis is None else (_tensor(a), _int(axis, "axis"))
    return _result(torch.argsort(t, dim=dim, stable=True), shadow, (a,))


# ---- picking and padding ----


def _indices(o: Any) -> Array:
    a = _operand(o)
    if not _is_array(a) or _shadow(a).dtype.kind not in "iu":
        _stop("indices that are no whole numbers")
    return a


@_of(np.take, method="take")
def _take(a: Any, indices: Any, axis: Any = None) -> Any:
    (a,) = _arrays_of("fiubc", a)
    index = _indices(indices) if type(indices) is not int else _stop("one index of numpy.take")
    shadow = _by_numpy(np.take, _shadow(a), np.zeros(_shadow(index).shape, np.int64), axis)
    t, dim = (_tensor(a).reshape(-1), 0) if axis is None else (_tensor(a), _axes(axis, _tensor(a).dim())[0])
    picked = _try(t.__getitem__, (*[slice(None)] * dim, _tensor(index).to(torch.int64)))
    return _result(picked, shadow, (a, index))


@_of(np.take_along_axis)
def _take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    (a,) = _arrays_of("fiubc", arr)
    index = _indices(indices)
    dim = _int(axis, "axis")
    shadow = _by_numpy(np.take_along_axis, _shadow(a), np.zeros(_shadow(index).shape, np.int64), dim)
    n, at = _tensor(a).shape[dim], _tensor(index).to(torch.int64)
    return _result(_try(torch.take_along_dim, _tensor(a), torch.where(at < 0, at + n, at), dim), shadow, (a, index))


@_of(np.pad)
def _pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    (a,) = _arrays_of("fiub", array)
    value = kwargs.pop("constant_values", 0)
    if kwargs or mode != "constant" or type(value) not in (int, float) or not _is_plain(pad_width):
        _stop("such a padding")
    widths = np.broadcast_to(np.asarray(pad_width), (_shadow(a).ndim, 2)).tolist()
    shadow = _by_numpy(np.pad, _shadow(a), pad_width, constant_values=value)
    number = shadow.dtype.type(value).item()
    flat = [int(n) for pair in reversed(widths) for n in pair]
    return _result(torch.nn.functional.pad(_tensor(a), flat, value=number), shadow, (a,))


def _part(name: str) -> property:
    """The real or imaginary part: a view, but for the zeros beside real numbers."""

    def part(self: Array) -> Any:
        shadow, t = getattr(_shadow(self), name), _tensor(self)
        if t.is_complex():
            return _result(getattr(t, name), shadow, (self,))
        return _result(t.view_as(t) if name == "real" else torch.zeros_like(t), shadow, (self,))

    return property(part)


Array.real = _part("real")  # type: ignore[attr-defined]
Array.imag = _part("imag")  # type: ignore[attr-defined]
_of(np.real)(lambda val: _arrays_of("fiubc", val)[0].real)  # type: ignore[attr-defined]
_of(np.imag)(lambda val: _arrays_of("fiubc", val)[0].imag)  # type: ignore[attr-defined]
