"""A plain evaluator of prim graphs, written from the sentences of prims.def: the reference that decompositions are
tested with, independent of the C++ one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from op_calls import NUMBER_DTYPE

T = torch.Tensor


def _convert(x: T, dtype: torch.dtype) -> T:
    return x != 0 if dtype == torch.bool else x.to(dtype)


def _full(sizes: list[int], value: Any, dtype: torch.dtype, device: Any) -> T:
    return torch.full(sizes, value, dtype=dtype)


def _iota(n: int, start: Any, step: Any, dtype: torch.dtype, device: Any) -> T:
    return (start + torch.arange(n, dtype=torch.int64) * step).to(dtype)


def _broadcast(x: T, sizes: list[int], dims: list[int]) -> T:
    shape = [1] * len(sizes)
    for d, to in enumerate(dims):
        shape[to] = x.shape[d]
    assert dims == sorted(dims), "broadcast keeps the order of dims"
    return x.reshape(shape).expand(sizes)


def _slice(x: T, starts: list[int], ends: list[int], steps: list[int]) -> T:
    for d, (a, b, s) in enumerate(zip(starts, ends, steps, strict=True)):
        assert 0 <= a <= b <= x.shape[d] and s >= 1, (a, b, s, x.shape)
        x = x[(slice(None),) * d + (slice(a, b, s),)]
    return x


def _pad(x: T, lo: list[int], hi: list[int], value: Any) -> T:
    assert all(v >= 0 for v in lo + hi)
    out = torch.full([n + a + b for n, a, b in zip(x.shape, lo, hi, strict=True)], value, dtype=x.dtype)
    out[tuple(slice(a, a + n) for a, n in zip(lo, x.shape, strict=True))] = x
    return out


def _slice_scatter(x: T, src: T, starts: list[int], ends: list[int], steps: list[int]) -> T:
    out = x.clone()
    _slice(out, starts, ends, steps).copy_(src)
    return out


def _dims(dims: list[int], x: T) -> list[int]:
    assert dims == sorted(set(dims)) and all(0 <= d < x.dim() for d in dims), dims
    return dims


def _reduce(f: Callable[..., T]) -> Callable[..., T]:
    def run(x: T, dims: list[int]) -> T:
        assert x.dtype not in (torch.bfloat16, torch.float16), "accumulate in f32"
        for d in reversed(_dims(dims, x)):
            x = f(x, d)
        return x

    return run


def _arg(f: Callable[..., T]) -> Callable[..., T]:
    def run(x: T, dims: list[int]) -> T:
        _dims(dims, x)
        keep = [d for d in range(x.dim()) if d not in dims]
        flat = x.permute(keep + dims).reshape([x.shape[d] for d in keep] + [-1])
        return f(flat, flat.dim() - 1)

    return run


def _sum(x: T, d: int) -> T:
    return x.sum(d, dtype=x.dtype)


def _prod(x: T, d: int) -> T:
    return x.prod(d, dtype=x.dtype)


def _avg_pool(x: T, kernel, stride, padding, ceil_mode, count_include_pad, divisor) -> T:
    f = {1: torch.nn.functional.avg_pool1d, 2: torch.nn.functional.avg_pool2d, 3: torch.nn.functional.avg_pool3d}[
        len(kernel)
    ]
    return f(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor)


def _max_pool(x: T, kernel, stride, padding, dilation, ceil_mode) -> T:
    f = {1: torch.nn.functional.max_pool1d, 2: torch.nn.functional.max_pool2d, 3: torch.nn.functional.max_pool3d}[
        len(kernel)
    ]
    return f(x, kernel, stride, padding, dilation, ceil_mode)


def _index(x: T, list_: list[T | None]) -> T:
    return torch.ops.aten.index.Tensor(x, list_)


def _as_strided(x: T, sizes, strides, offset) -> T:
    return x.contiguous().as_strided(sizes, strides, offset)


def _floordiv(a: T, b: T) -> T:
    return torch.div(a, b, rounding_mode="floor")


PRIMS: dict[str, Callable[..., Any]] = {
    **{
        n: getattr(torch, n)
        for n in """
        neg abs sign ceil floor round trunc exp exp2 expm1 log log2 log10 log1p sqrt rsqrt
        reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv
        lgamma digamma i0 sigmoid relu logical_not bitwise_not isnan isinf signbit add sub mul div fmod
        remainder pow atan2 hypot copysign nextafter minimum maximum fmin fmax bitwise_and
        bitwise_or bitwise_xor eq ne lt le gt ge where gather
        """.split()  # noqa: SIM905 - a table
    },
    "convert": _convert, "copy": lambda x: x, "floordiv": _floordiv,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "shift_left": torch.bitwise_left_shift, "shift_right": torch.bitwise_right_shift,
    "fma": lambda a, b, c: a * b + c, "full": _full, "iota": _iota, "broadcast": _broadcast,
    "permute": lambda x, dims: x.permute(dims), "reshape": lambda x, sizes: x.reshape(sizes), "slice": _slice,
    "flip": torch.flip, "diagonal": torch.diagonal, "as_strided": _as_strided, "pad": _pad, "cat": torch.cat,
    "index": _index,
    "slice_scatter": _slice_scatter, "sum": _reduce(_sum), "prod": _reduce(_prod), "amax": _reduce(torch.amax),
    "amin": _reduce(torch.amin), "any": _reduce(torch.any), "all": _reduce(torch.all), "argmax": _arg(torch.argmax),
    "argmin": _arg(torch.argmin), "cumsum": lambda x, d: x.cumsum(d, dtype=x.dtype),
    "cumprod": lambda x, d: x.cumprod(d, dtype=x.dtype), "cummax": lambda x, d: x.cummax(d)[0],
    "cummin": lambda x, d: x.cummin(d)[0], "avg_pool": _avg_pool, "max_pool": _max_pool,
    "scatter": None, "index_put": None,
}  # fmt: skip
SAME_DTYPE = frozenset(
    """add sub mul div floordiv truncdiv fmod remainder pow atan2 hypot copysign nextafter minimum maximum fmin fmax
    bitwise_and
    bitwise_or bitwise_xor shift_left shift_right eq ne lt le gt ge""".split()  # noqa: SIM905 - a table
)


def _decode(value: Any, values: dict[int, T]) -> Any:
    if isinstance(value, tuple):
        if value[0] == "ref":
            return values[value[1]]
        return NUMBER_DTYPE[value[1]] if value[0] == "dtype" else value[1:]
    return [_decode(v, values) for v in value] if isinstance(value, list) else value


def evaluate(graph: dict, inputs: list[T]) -> list[T | None]:
    """Runs what flashover._C.decompose returned; checks what each prim promises of dtypes and sizes."""
    values = dict(enumerate(inputs))
    assert len(inputs) == graph["inputs"]
    for op, args, outs, types in graph["nodes"]:
        name = op.removeprefix("prim.")
        assert op.startswith("prim."), f"{op} is not a prim"
        decoded = [_decode(a, values) for a in args]
        if name in SAME_DTYPE:
            a, b = decoded
            assert a.dtype == b.dtype and a.shape == b.shape, (op, a.dtype, b.dtype, a.shape, b.shape)
        out = PRIMS[name](*decoded)
        dtype, sizes, *_ = types[0]
        assert out.dtype == NUMBER_DTYPE[dtype] and list(out.shape) == sizes, (
            op,
            out.dtype,
            out.shape,
            types,
            graph["text"],
        )
        values[outs[0]] = out
    return [None if v < 0 else values[v] for v in graph["outs"]]
