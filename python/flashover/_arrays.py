"""Arrays of numpy while a program is traced.

An Array stands for an array or a scalar of numpy. It has a trace tensor, whose operators are recorded, and a shadow: a
real array (or scalar) of the same dtype, shape and strides that holds other numbers. Each operation is done twice: by
numpy on the shadows, which says what comes out (type, dtype, shape, strides, what shares memory, which error), and by
torch on the tensors. Where the two do not agree, and for each function that is in no table here, the trace ends: the
values that torch computes are numpy's only for what the tables list, which tests/language/test_numpy_programs.py
compares.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch

from flashover import _C

if int(np.__version__.split(".")[0]) < 2:
    raise ImportError("numbers of an older numpy promote by their values")

_stop: Callable[[str], NoReturn] = _C._frame.stop
_lift: Callable[[Any], Any] = _C._frame.lift

_DTYPES: dict[np.dtype, torch.dtype] = {
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int8): torch.int8,
    np.dtype(np.int16): torch.int16,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.complex64): torch.complex64,
    np.dtype(np.complex128): torch.complex128,
}
_SCALARS = (bool, int, float, complex)


def _dtype(dtype: np.dtype) -> torch.dtype:
    found = _DTYPES.get(dtype) if dtype.isnative else None
    return found if found is not None else _stop(f"an array of numpy of dtype {dtype}")


def _root(shadow: Any) -> Any:
    """The array that a view is of; None of a scalar, which has its own memory."""
    if isinstance(shadow, np.generic):
        return None
    while type(shadow.base) is np.ndarray:
        shadow = shadow.base
    return shadow


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _address(shadow: np.ndarray) -> int:
    return shadow.__array_interface__["data"][0]


class Array:
    __slots__ = ("_flashover_origin", "_flashover_root", "_flashover_shadow", "_flashover_state", "_flashover_tensor")
    _flashover_tensor: torch.Tensor
    _flashover_shadow: Any
    _flashover_origin: Any  # the array from before the trace that it stands for, or None
    _flashover_root: Array | None  # what it is a view of
    _flashover_state: _State

    def __hash__(self) -> int:
        if isinstance(self._flashover_shadow, np.generic):
            _stop("the hash of a scalar of numpy")
        return hash(self._flashover_shadow)  # raises

    @property
    def __class__(self) -> type:  # what isinstance() asks
        return type(self._flashover_shadow)

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self._flashover_shadow), name):
            _stop(f"attribute {name} of an array of numpy")
        return getattr(self._flashover_shadow, name)  # raises

    def __setattr__(self, name: str, value: Any) -> None:
        _stop(f"attribute {name} of an array of numpy is set")

    def __array_ufunc__(self, f: np.ufunc, method: str, *args: Any, **kwargs: Any) -> Any:
        # A scalar of numpy's own stood before the operator.
        return _ufunc(f, args, kwargs) if method == "__call__" else _stop(f"numpy.{f.__name__}.{method}")

    def __len__(self) -> int:
        return len(self._flashover_shadow)

    # (Iterated by index, as arrays are: such an iterator can be made again of the array itself.)
    def __getitem__(self, key: Any) -> Any:
        return _get_item(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _set_item(self, key, value)


class _Memory(np.ndarray):
    """The memory of a shadow whose array has no array of numpy as its base."""


class _State:
    """What is known of the memory that an Array and its views lie in."""

    __slots__ = ("hidden", "shared")

    def __init__(self) -> None:
        self.shared = False  # a tensor of the program has it, too
        self.hidden: Array | None = None  # of the array that it belongs to, where numpy handed out no more than views


def _make(tensor: torch.Tensor, shadow: Any, origin: Any = None, of: Array | None = None) -> Array:
    """`of`: an Array with the same memory."""
    made = object.__new__(Array)
    root = None
    if of is not None and _root(shadow) is not shadow:
        root = of if of._flashover_root is None else of._flashover_root
        root = root if root._flashover_shadow is _root(shadow) else None
    state = _State() if of is None else of._flashover_state
    for name, value in (("tensor", tensor), ("shadow", shadow), ("origin", origin), ("root", root), ("state", state)):
        object.__setattr__(made, f"_flashover_{name}", value)
    return made


def _is_array(o: Any) -> bool:
    return type(o) is Array


def _tensor(a: Array) -> torch.Tensor:
    return a._flashover_tensor


def _shadow_like(tensor: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    """An array of this geometry, full of ones."""
    sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if tensor.numel() else 0
    memory = _Memory((max(span, 1),), dtype)
    memory.fill(1)
    shadow = np.ndarray(sizes, dtype, memory, strides=tuple(s * dtype.itemsize for s in strides))
    assert type(shadow.base) is _Memory
    return shadow


_TRACE = torch._C.DispatchKeySet(torch._C._parse_dispatch_key("Fake"))


def real_tensor(array: np.ndarray) -> torch.Tensor:
    """torch.from_numpy(array), outside of the trace."""
    with torch._C._ExcludeDispatchKeyGuard(_TRACE):
        return torch.from_numpy(array)


def lifted(array: np.ndarray, tensor: torch.Tensor) -> Array:
    """What stands for an array from before the trace; the tensor is an input of the graph over its memory."""
    if array.__array_interface__["data"][1]:  # (the flag itself warns of arrays that were broadcast)
        _stop("an array of numpy that is read-only")
    _dtype(array.dtype)
    return _make(tensor, _shadow_like(tensor, array.dtype), array)


_NUMPY_DTYPES = {t: n for n, t in _DTYPES.items()}


def from_tensor(tensor: torch.Tensor, args: tuple, kwargs: dict, keeps_grad: bool = False) -> Array:
    """tensor.numpy()"""
    if args or any(v is not False for v in kwargs.values()) or kwargs.keys() - {"force"}:
        _stop("numpy() with arguments")
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        _stop("numpy() of a tensor subclass")
    if (tensor.requires_grad and not keeps_grad) or tensor.is_conj() or tensor.is_neg():
        _stop("numpy() of a tensor that has none")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.dtype not in _NUMPY_DTYPES:
        _stop(f"numpy() of a tensor on {tensor.device}, {tensor.dtype}")
    if any(s < 0 for s in tensor.stride()):
        _stop("numpy() of such a tensor")
    made = tensor.view_as(tensor) if keeps_grad else tensor.detach()
    return _make(made, _shadow_like(made, _NUMPY_DTYPES[made.dtype]))


def with_gradient(tensor: torch.Tensor) -> Array:
    """tensor.numpy(), but gradients pass."""
    return from_tensor(tensor, (), {}, keeps_grad=True)


def hand_out(array: Array) -> tuple[Any, ...]:
    """What makes the array that goes out, and what it is given; an Array or a tensor is made before."""
    tensor, shadow = array._flashover_tensor, array._flashover_shadow
    if tensor.requires_grad:
        _stop("an array of numpy with a gradient leaves the graph")
    if isinstance(shadow, np.generic):
        return as_scalar, tensor
    if not shadow.flags.writeable:
        _stop("an array of numpy that is read-only")
    root = _root(shadow)
    if array._flashover_state.shared:
        return torch.Tensor.numpy, tensor
    if root is shadow:
        return (owned if shadow.base is None else torch.Tensor.numpy), tensor
    first = _address(shadow) - _address(root)
    base = array._flashover_root
    if base is None:
        base = _hidden_root(array, root, first)
    if _buffer(root if base._flashover_origin is None else base._flashover_origin) is None:
        return torch.Tensor.numpy, tensor
    return view_of, base, shadow.dtype.str, shadow.shape, shadow.strides, first


def _hidden_root(array: Array, root: np.ndarray, first: int) -> Array:
    """The Array of what this one is a view of, `first` bytes behind its beginning; nobody else has it."""
    tensor, state = array._flashover_tensor, array._flashover_state
    if state.hidden is None or state.hidden._flashover_shadow is not root:
        start = tensor.storage_offset() - first // root.itemsize
        strides = tuple(s // root.itemsize for s in root.strides)
        known = root.size == tensor.numel() and tensor.dtype == _dtype(root.dtype)
        if not known or start < 0 or min(strides, default=0) < 0 or root.base is not None:
            _stop("a view of an array of numpy that is not known")
        state.hidden = _make(tensor.as_strided(root.shape, strides, start), root)
    return state.hidden


def owned(tensor: torch.Tensor) -> np.ndarray:
    """An array with memory of its own, laid out like the tensor."""
    return np.copy(tensor.numpy(), order="K")


def _buffer(array: np.ndarray) -> tuple[np.ndarray, int] | None:
    """An array without gaps over the memory, and where in it (in bytes) `array` begins."""
    order = sorted(range(array.ndim), key=lambda d: (-abs(array.strides[d]), -array.shape[d]))
    dense = array.transpose(order)
    if dense.flags.c_contiguous:
        return dense, 0
    base = array.base
    if type(base) is not np.ndarray or not base.flags.c_contiguous:
        return None
    return base, _address(array) - _address(base)


def view_of(array: np.ndarray, dtype: str, shape: tuple, strides: tuple, first: int) -> np.ndarray:
    """A view of the array, `first` bytes behind its beginning: its base is what numpy's would be."""
    found = _buffer(array)
    assert found is not None  # hand_out() asked
    return np.ndarray(shape, np.dtype(dtype), found[0], found[1] + first, strides)


def as_scalar(tensor: torch.Tensor) -> Any:
    return tensor.numpy()[()]


def type_of(array: Array) -> type:
    return type(array._flashover_shadow)


# ---- operands and results ----


def _operand(o: Any) -> Any:
    """Arrays of before the trace as Arrays, constants of numpy's as Arrays of constants; numbers as they are."""
    if _is_array(o) or type(o) in _SCALARS:
        return o
    if type(o) is np.ndarray:
        known = _lift(o)
        return known if known is not None else _constant(o)
    if isinstance(o, np.generic) and o.dtype in _DTYPES:
        return _constant(o)
    if isinstance(o, torch.Tensor):
        _stop("a tensor meets an array of numpy")
    if type(o) in (list, tuple):
        return _constant(_plain(o))
    return _stop(f"a {type(o).__name__} meets an array of numpy")


def _plain(o: Any) -> Any:
    """Lists of numbers without Arrays in them, as an array."""

    def look(v: Any) -> None:
        if type(v) in (list, tuple):
            for e in v:
                look(e)
        elif not (type(v) in _SCALARS or (isinstance(v, np.generic) and v.dtype in _DTYPES)):
            _stop("a list of arrays of numpy")

    look(o)
    return np.array(o)


def _constant(value: Any) -> Array:
    """Of an array that nobody else has, or of one that is known by what it holds."""
    array = np.array(value)
    _dtype(array.dtype)
    scalar = isinstance(value, np.generic)
    return _make(torch.from_numpy(array.copy()), value if scalar else array)


def _shadow(o: Any) -> Any:
    if _is_array(o):
        return o._flashover_shadow
    if type(o) is tuple or type(o) is list:
        return type(o)(_shadow(e) for e in o)
    return o


def _by_numpy(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with np.errstate(all="ignore"):
        return f(*args, **kwargs)


def _result(tensor: torch.Tensor, shadow: Any, operands: tuple) -> Array:
    """The Array of both, if they are alike."""
    if not isinstance(shadow, (np.ndarray, np.generic)) or isinstance(shadow, (np.matrix, np.ma.MaskedArray)):
        _stop(f"numpy gives a {type(shadow).__name__}")
    wanted = _dtype(shadow.dtype)
    if tensor.dtype != wanted or tuple(tensor.shape) != shadow.shape:
        _stop(f"numpy gives {shadow.dtype}{list(shadow.shape)}, torch {tensor.dtype}{list(tensor.shape)}")
    shares = None
    memory, root = _memory(tensor), _root(shadow)
    own = True
    for o in operands:
        if not _is_array(o):
            continue
        if root is not None and root is _root(o._flashover_shadow):
            if memory != _memory(o._flashover_tensor):
                _stop("numpy's result shares memory where torch's does not")
            shares = o
        elif memory == _memory(o._flashover_tensor):
            own = False
    if shares is None and not own:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    if isinstance(shadow, np.generic):
        return _make(tensor, shadow)
    strides = tuple(s // shadow.itemsize for s in shadow.strides)
    alike = all(n == 1 or a == b for n, a, b in zip(shadow.shape, strides, tensor.stride(), strict=True))
    if shares is not None:
        first = (_address(shadow) - _address(shares._flashover_shadow)) // shadow.itemsize
        if shadow.size and (not alike or first != tensor.storage_offset() - shares._flashover_tensor.storage_offset()):
            _stop("a view of numpy's that is none of torch's")
    elif shadow.size and not alike:
        if any(s < 0 for s in strides):
            _stop("a view of numpy's that is none of torch's")
        laid_out = torch.empty_strided(shadow.shape, strides, dtype=wanted)
        laid_out.copy_(tensor)
        tensor = laid_out
    return _make(tensor, shadow, of=shares)


def _as(o: Any, dtype: np.dtype) -> torch.Tensor:
    """An operand as a tensor of this dtype."""
    if _is_array(o):
        return o._flashover_tensor.to(_dtype(dtype))
    value = _by_numpy(_try, dtype.type, o).item()
    return torch.full((), value, dtype=_dtype(dtype))


def _try(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return f(*args, **kwargs)
    except Exception as e:  # not numpy's error: that one came before
        return _stop(f"torch does not do it: {type(e).__name__}: {str(e)[:80]}")


def _only(kwargs: dict, *known: str, **defaults: Any) -> None:
    for name, value in kwargs.items():
        if name in known or (name in defaults and value is defaults[name]):
            continue
        _stop(f"argument {name} of a function of numpy")


# ---- universal functions ----


def _remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    r = torch.remainder(a, b)
    return torch.where(r == 0, torch.copysign(torch.zeros_like(r), b), r) if a.is_floating_point() else r


def _sign(a: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isnan(a), a, torch.sign(a)) if a.is_floating_point() else torch.sign(a)


def _heaviside(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isnan(a), a, torch.heaviside(a, b))


_F, _I, _B, _C_ = "f", "iu", "b", "c"
# By name: the kinds of numbers that the loop may take, and what does it on tensors of the loop's dtypes.
_UFUNCS: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "add": (_F + _I + _B + _C_, torch.add),
    "subtract": (_F + _I + _C_, torch.sub),
    "multiply": (_F + _I + _B + _C_, torch.mul),
    "divide": (_F + _C_, torch.div),
    "floor_divide": (_F + _I, torch.floor_divide),
    "remainder": (_F + _I, _remainder),
    "fmod": (_F + _I, torch.fmod),
    "power": (_F + _I, torch.pow),
    "float_power": ("", torch.pow),
    "maximum": (_F + _I + _B, torch.maximum),
    "minimum": (_F + _I + _B, torch.minimum),
    "fmax": (_F, torch.fmax),
    "fmin": (_F, torch.fmin),
    "absolute": (_F + _I + _C_, torch.abs),
    "conjugate": (_F + _I + _C_, lambda a: torch.conj_physical(a) if a.is_complex() else torch.clone(a)),
    "fabs": (_F, torch.abs),
    "negative": (_F + _I + _C_, torch.neg),
    "positive": (_F + _I + _C_, torch.clone),
    "sign": (_F + _I, _sign),
    "square": (_F + _I, torch.square),
    "sqrt": (_F, torch.sqrt),
    "reciprocal": (_F, torch.reciprocal),
    "exp": (_F, torch.exp),
    "exp2": (_F, torch.exp2),
    "expm1": (_F, torch.expm1),
    "log": (_F, torch.log),
    "log2": (_F, torch.log2),
    "log10": (_F, torch.log10),
    "log1p": (_F, torch.log1p),
    "sin": (_F, torch.sin),
    "cos": (_F, torch.cos),
    "tan": (_F, torch.tan),
    "arcsin": (_F, torch.asin),
    "arccos": (_F, torch.acos),
    "arctan": (_F, torch.atan),
    "arctan2": (_F, torch.atan2),
    "sinh": (_F, torch.sinh),
    "cosh": (_F, torch.cosh),
    "tanh": (_F, torch.tanh),
    "arcsinh": (_F, torch.asinh),
    "arccosh": (_F, torch.acosh),
    "arctanh": (_F, torch.atanh),
    "hypot": (_F, torch.hypot),
    "floor": (_F + _I, torch.floor),
    "ceil": (_F + _I, torch.ceil),
    "trunc": (_F + _I, torch.trunc),
    "rint": (_F, torch.round),
    "deg2rad": (_F, torch.deg2rad),
    "rad2deg": (_F, torch.rad2deg),
    "radians": (_F, torch.deg2rad),
    "degrees": (_F, torch.rad2deg),
    "logaddexp": (_F, torch.logaddexp),
    "copysign": (_F, torch.copysign),
    "heaviside": (_F, _heaviside),
    "isnan": (_F, torch.isnan),
    "isinf": (_F, torch.isinf),
    "isfinite": (_F, torch.isfinite),
    "signbit": (_F, torch.signbit),
    "equal": (_F + _I + _B + _C_, torch.eq),
    "not_equal": (_F + _I + _B + _C_, torch.ne),
    "less": (_F + _I + _B, torch.lt),
    "less_equal": (_F + _I + _B, torch.le),
    "greater": (_F + _I + _B, torch.gt),
    "greater_equal": (_F + _I + _B, torch.ge),
    "logical_and": (_F + _I + _B, torch.logical_and),
    "logical_or": (_F + _I + _B, torch.logical_or),
    "logical_xor": (_F + _I + _B, torch.logical_xor),
    "logical_not": (_F + _I + _B, torch.logical_not),
    "bitwise_and": (_I + _B, torch.bitwise_and),
    "bitwise_or": (_I + _B, torch.bitwise_or),
    "bitwise_xor": (_I + _B, torch.bitwise_xor),
    "invert": (_I + _B, torch.bitwise_not),
    "left_shift": (_I, torch.bitwise_left_shift),
    "right_shift": (_I, torch.bitwise_right_shift),
    "matmul": (_F + _I, torch.matmul),
}


def _fits(name: str, args: tuple, dtypes: tuple) -> bool:
    """Whole numbers: where numpy and torch (or the machine) do not say the same, the other operand must be known."""
    if dtypes[0].kind not in "iu":
        return True
    b = args[-1]
    known = type(b) in (int, bool)
    if name in ("floor_divide", "remainder", "fmod"):
        return known and b not in (0, -1)
    if name == "power":
        return known and b >= 0
    if name in ("left_shift", "right_shift"):
        return known and 0 <= b < 8 * dtypes[0].itemsize
    return True


def _ufunc(f: np.ufunc, args: tuple, kwargs: dict) -> Any:
    row = _UFUNCS.get(f.__name__)
    if row is None or getattr(np, f.__name__, None) is not f:
        _stop(f"call of numpy.{f.__name__}")
    out = kwargs.get("out")
    if len(args) == f.nin + 1 and out is None:
        args, out = args[: f.nin], args[f.nin]
    if len(args) != f.nin:
        _stop(f"call of numpy.{f.__name__} with so many arguments")
    if type(out) is tuple and len(out) == 1:
        out = out[0]
    dtype = kwargs.get("dtype")
    _only(kwargs, "out", "dtype", where=True, casting="same_kind", order="K", subok=True)
    args = tuple(_operand(a) for a in args)
    if out is not None:
        out = _operand(out)
        if not _is_array(out) or isinstance(out._flashover_shadow, np.generic) or dtype is not None:
            _stop("out= of a function of numpy")
        value = _apply(f, args, dtype, row)
        _by_numpy(f, *(_shadow(a) for a in args), out=out._flashover_shadow)  # raises
        return _write(out, value)
    return _apply(f, args, dtype, row)


def _apply(f: np.ufunc, args: tuple, dtype: Any, row: tuple) -> Array:
    given = {} if dtype is None else {"dtype": dtype}
    shadow = _by_numpy(f, *(_shadow(a) for a in args), **given)
    # Numbers of Python's are weak; a bool is an array.
    kinds = tuple(
        a._flashover_shadow.dtype if _is_array(a) else np.dtype(np.bool_) if type(a) is bool else type(a) for a in args
    )
    signature = {} if dtype is None else {"signature": (None,) * f.nin + (np.dtype(dtype),)}
    loop = f.resolve_dtypes((*kinds, None), **signature)
    if any(d not in _DTYPES for d in loop) or any(d.kind not in row[0] for d in loop[: f.nin]):
        _stop(f"numpy.{f.__name__} of {loop[0]}")
    if not _fits(f.__name__, args, loop):
        _stop(f"numpy.{f.__name__} of whole numbers that may raise or wrap")
    operands = [_as(a, d) for a, d in zip(args, loop[: f.nin], strict=True)]
    result = _try(row[1], *operands)
    return _result(result.to(_dtype(loop[f.nin])), shadow, args)


def _write(out: Array, value: Array) -> Array:
    _writes(out)
    source = value._flashover_tensor
    if _memory(source) == _memory(out._flashover_tensor):
        source = source.clone()
    _try(out._flashover_tensor.copy_, source)
    return out


def _writes(out: Array) -> None:
    if _overlaps_itself(out._flashover_shadow):
        _stop("an array of numpy that overlaps itself is written")
    if out._flashover_origin is not None and not _C._frame.may_write(out._flashover_origin):
        _stop("an array of numpy is written after it was read")


def _overlaps_itself(shadow: np.ndarray) -> bool:
    return any(s == 0 and n > 1 for n, s in zip(shadow.shape, shadow.strides, strict=True))


_BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    "matmul": np.matmul,
    "pow": np.power,
}
_COMPARE = {
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_SEQUENCES = (list, tuple, str, bytes, bytearray)
_UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}


def _power(a: Any, b: Any) -> Any:
    """a ** b: numpy has ways of its own for some numbers."""
    if type(b) in (int, float) and _is_array(a) and a._flashover_shadow.dtype.kind == "f":
        quick = {2: np.square, 1: np.positive, -1: np.reciprocal, 0.5: np.sqrt}.get(b)
        if quick is not None and isinstance(a._flashover_shadow, np.ndarray):
            shadow = _by_numpy(operator.pow, a._flashover_shadow, b)
            result = _ufunc(quick, (a,), {})
            return _result(result._flashover_tensor, shadow, ())
        if b == 0:
            _stop("a power of 0")
    result = _ufunc(np.power, (a, b), {})
    shadows = [o._flashover_shadow if _is_array(o) else o for o in (a, b)]
    if result._flashover_shadow.dtype != _by_numpy(operator.pow, *shadows).dtype:
        _stop("a power of booleans")  # of an array of them 2 is a square of int8
    return result


def _define(name: str, f: Callable[..., Any]) -> None:
    f.__name__ = name  # by which a method of an array is made again
    setattr(Array, name, f)


def _define_operators() -> None:
    def binary(f: np.ufunc, swap: bool, power: bool) -> Callable[[Array, Any], Any]:
        def method(self: Array, other: Any) -> Any:
            if f is np.multiply and type(other) in _SEQUENCES and isinstance(self._flashover_shadow, np.generic):
                _stop("a sequence is repeated by a scalar of numpy")
            a, b = (other, self) if swap else (self, other)
            a, b = _operand(a), _operand(b)
            return _power(a, b) if power else _ufunc(f, (a, b), {})

        return method

    def in_place(f: np.ufunc, power: bool) -> Callable[[Array, Any], Any]:
        def method(self: Array, other: Any) -> Any:
            if isinstance(self._flashover_shadow, np.generic) or power or f is np.matmul:
                _stop("such an operation in place")
            return _ufunc(f, (self, other), {"out": self})

        return method

    # (No functools.partialmethod: its own code would be looked at, and make the Array a part of what is known.)
    def unary(f: np.ufunc) -> Callable[[Array], Any]:
        return lambda self: _ufunc(f, (self,), {})

    for name, f in _BINARY.items():
        _define(f"__{name}__", binary(f, False, name == "pow"))
        _define(f"__r{name}__", binary(f, True, name == "pow"))
        _define(f"__i{name}__", in_place(f, name == "pow"))
    for name, f in _COMPARE.items():
        _define(f"__{name}__", binary(f, False, False))
    for name, f in _UNARY.items():
        _define(f"__{name}__", unary(f))

    def stops(name: str) -> Callable[..., NoReturn]:
        def method(self: Array, *args: Any, **kwargs: Any) -> NoReturn:
            _stop(f"{name} of an array of numpy")

        return method

    names = "bool int float complex index str repr format contains divmod rdivmod round trunc floor ceil delitem copy "
    names += "deepcopy reduce reduce_ex array array_function torch_function dlpack dlpack_device buffer "
    names += "getstate setstate sizeof dir array_namespace array_wrap"
    for name in names.split():
        _define(f"__{name}__", stops(f"__{name}__"))


# ---- indexing ----


def _key(array: Array, key: Any) -> tuple[Any, Any, bool]:
    """The key for torch and for the shadow, and whether it makes a view."""
    parts = key if type(key) is tuple else (key,)
    ours, shadows, advanced, whole = [], [], 0, 0
    for p in parts:
        if type(p) is np.ndarray or isinstance(p, np.generic):
            p = _operand(p)
            if _is_array(p) and isinstance(p._flashover_shadow, np.generic):
                _stop("an index that is a scalar of numpy")
        if type(p) is slice:
            if any(v is not None and type(v) is not int for v in (p.start, p.stop, p.step)):
                _stop("such a slice of an array of numpy")
            if p.step is not None and p.step < 0:
                _stop("a slice that goes backwards")
            ours.append(p)
            shadows.append(p)
        elif p is None or p is Ellipsis or type(p) is int:
            whole += type(p) is int or p is None
            ours.append(p)
            shadows.append(p)
        elif type(p) is list or _is_array(p):
            index = _operand(p)
            if index._flashover_shadow.dtype.kind not in "iu" or index._flashover_shadow.ndim == 0:
                _stop("an index that is no array of whole numbers")
            advanced += 1
            zeros = np.zeros(index._flashover_shadow.shape, np.int64)  # in bounds, if there is anything
            ours.append(index._flashover_tensor.to(torch.int64))
            shadows.append(zeros)
        else:
            _stop("such an index of an array of numpy")
    if advanced and whole:  # (numpy takes a number for one more array)
        _stop("an index of several kinds")
    return tuple(ours), tuple(shadows), advanced == 0


def _get_item(array: Array, key: Any) -> Any:
    shadow = array._flashover_shadow
    ours, shadows, _view = _key(array, key)
    if isinstance(shadow, np.generic):
        _stop("an index of a scalar of numpy")
    picked = shadow[shadows if type(key) is tuple else shadows[0]]
    result = _try(array._flashover_tensor.__getitem__, ours)
    return _result(result, picked, (array,))


def _set_item(array: Array, key: Any, value: Any) -> None:
    shadow = array._flashover_shadow
    if isinstance(shadow, np.generic) or not shadow.flags.writeable:
        _stop("an item of such an array of numpy is set")
    value = _operand(value)
    _writes(array)
    kind = value._flashover_shadow.dtype.kind if _is_array(value) else np.dtype(type(value)).kind
    if (kind == "c" and shadow.dtype.kind != "c") or (kind == "f" and shadow.dtype.kind not in "fc"):
        _stop("a number that does not fit the array of numpy")
    if _is_array(value):
        new = value._flashover_tensor.to(_dtype(shadow.dtype))
        if _memory(new) == _memory(array._flashover_tensor):
            new = new.clone()
    else:
        new = torch.full((), shadow.dtype.type(value).item(), dtype=_dtype(shadow.dtype))
    mask = _operand(key) if type(key) is np.ndarray else key
    if _is_array(mask) and mask._flashover_shadow.dtype.kind == "b":
        if mask._flashover_shadow.shape != shadow.shape or (_is_array(value) and value._flashover_shadow.ndim > 0):
            _stop("such a mask of an array of numpy")
        tensor = array._flashover_tensor
        tensor.copy_(torch.where(mask._flashover_tensor, new, tensor))
        return
    ours, shadows, view = _key(array, key)
    if not view:
        _stop("items of an array of numpy are set by an array")
    shadow[shadows if type(key) is tuple else shadows[0]] = _shadow(value)  # raises
    target = _try(array._flashover_tensor.__getitem__, ours)
    extra = new.dim() - target.dim()
    for _ in range(max(extra, 0)):
        new = new.squeeze(0)
    _try(target.copy_, new)


# ---- functions ----

_FUNCTIONS: dict[Any, Callable[..., Any]] = {}
_METHODS: dict[str, Callable[..., Any]] = {}


def _of(*functions: Any, method: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(f: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            _FUNCTIONS[function] = f
        if method is not None:
            _METHODS[method] = f
        return f

    return note


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = axis if type(axis) is tuple else (axis,)
    if any(type(a) is not int for a in axes):
        _stop("such an axis")
    return tuple(a % ndim if ndim else a for a in axes)


def _reduction(name: str, kinds: str, compute: Callable[..., torch.Tensor], one_axis: bool = False) -> None:
    f = getattr(np, name)

    def reduce(a: Any, axis: Any = None, **kwargs: Any) -> Any:
        _only(kwargs, "dtype", "keepdims", "ddof", out=None)
        if name not in ("sum", "prod", "mean", "std", "var") and kwargs.get("dtype") is not None:
            _stop("dtype= of such a function of numpy")
        if "ddof" in kwargs and (name not in ("std", "var") or type(kwargs["ddof"]) is not int):
            _stop("ddof= of such a function of numpy")
        if "keepdims" in kwargs and type(kwargs["keepdims"]) is not bool:
            _stop("such a keepdims=")
        a = _operand(a)
        if not _is_array(a):
            _stop(f"numpy.{name} of a number")
        shadow = _by_numpy(f, a._flashover_shadow, axis=axis, **kwargs)
        if a._flashover_shadow.dtype.kind not in kinds:
            _stop(f"numpy.{name} of {a._flashover_shadow.dtype}")
        t = a._flashover_tensor
        axes = _axes(axis, t.dim())
        if one_axis and axis is not None and len(axes) != 1:
            _stop("such an axis")
        if a._flashover_shadow.size == 0 and name not in ("sum", "prod", "any", "all"):
            _stop("a function of an empty array of numpy")
        if t.dim() == 0 or (not axes and axis is not None):
            _stop("a reduction of a scalar")
        result = _try(compute, t, axes, bool(kwargs.get("keepdims", False)), shadow.dtype, kwargs)
        return _result(result.to(_dtype(shadow.dtype)), shadow, (a,))

    _of(f, *((np.amax,) if name == "max" else (np.amin,) if name == "min" else ()), method=name)(reduce)


def _wide(t: torch.Tensor, dtype: np.dtype) -> torch.Tensor:
    return t.to(torch.float32 if dtype == np.float16 else _dtype(dtype))


def _prod(t: torch.Tensor, axes: tuple, keep: bool, dtype: np.dtype, kwargs: dict) -> torch.Tensor:
    t = t.to(_dtype(dtype))
    for axis in sorted(axes, reverse=True):
        t = torch.prod(t, axis, keepdim=keep)
    return t


def _var(t: torch.Tensor, axes: tuple, keep: bool, dtype: np.dtype, kwargs: dict) -> torch.Tensor:
    return torch.var(_wide(t, dtype), axes, correction=kwargs.get("ddof", 0), keepdim=keep)


def _arg(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def compute(t: torch.Tensor, axes: tuple, keep: bool, dtype: np.dtype, kwargs: dict) -> torch.Tensor:
        t = t.to(torch.uint8) if t.dtype == torch.bool else t
        if len(axes) == t.dim() and t.dim() != 1:
            found = f(t.reshape(-1), 0)
            return found.reshape((1,) * t.dim()) if keep else found
        return f(t, axes[0], keepdim=keep)

    return compute


def _deviation(t: torch.Tensor, axes: tuple, keep: bool, dtype: np.dtype, kwargs: dict) -> torch.Tensor:
    return torch.sqrt(_var(t, axes, keep, dtype, kwargs))


_reduction("sum", "fiubc", lambda t, x, k, d, _: torch.sum(_wide(t, d), x, keepdim=k))
_reduction("mean", "fiub", lambda t, x, k, d, _: torch.mean(_wide(t, d), x, keepdim=k))
_reduction("prod", "fiub", _prod)
_reduction("max", "fiub", lambda t, x, k, d, _: torch.amax(t, x, keepdim=k))
_reduction("min", "fiub", lambda t, x, k, d, _: torch.amin(t, x, keepdim=k))
_reduction("any", "fiub", lambda t, x, k, d, _: torch.any(t != 0, x, keepdim=k))
_reduction("all", "fiub", lambda t, x, k, d, _: torch.all(t != 0, x, keepdim=k))
_reduction("var", "fiub", _var)
_reduction("std", "fiub", _deviation)
_reduction("argmax", "fiub", _arg(torch.argmax), one_axis=True)
_reduction("argmin", "fiub", _arg(torch.argmin), one_axis=True)
_reduction("ptp", "fiu", lambda t, x, k, d, _: torch.amax(t, x, keepdim=k) - torch.amin(t, x, keepdim=k))
_METHODS.pop("ptp")


def _scan(f: Callable[..., Any], compute: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def scan(a: Any, axis: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        _only(kwargs, out=None)
        a = _operand(a)
        if not _is_array(a) or a._flashover_shadow.ndim == 0 or a._flashover_shadow.dtype.kind not in "fiub":
            _stop("such a running sum")
        shadow = _by_numpy(f, a._flashover_shadow, axis=axis, dtype=dtype)
        t = a._flashover_tensor.to(_dtype(shadow.dtype))
        if shadow.dtype == np.float16:
            _stop("a running sum in float16")
        t = _try(compute, t.reshape(-1), 0) if axis is None else _try(compute, t, axis)
        return _result(t, shadow, (a,))

    return scan


_of(np.cumsum, method="cumsum")(_scan(np.cumsum, torch.cumsum))
_of(np.cumprod, method="cumprod")(_scan(np.cumprod, torch.cumprod))


def _elsewhere(f: Callable[..., Any], compute: Callable[..., Any], method: str | None = None) -> None:
    """A function of one array that only moves its elements: compute(tensor, *args), with arguments that are known."""

    def move(a: Any, *args: Any, **kwargs: Any) -> Any:
        a = _operand(a)
        if not _is_array(a) or isinstance(a._flashover_shadow, np.generic):
            _stop("such a function of a number")
        if not all(_is_plain(v) for v in (*args, *kwargs.values())):
            _stop("an argument that is an array of numpy")
        shadow = _by_numpy(f, a._flashover_shadow, *args, **kwargs)
        result = _try(compute, a._flashover_tensor, *args, **kwargs)
        if type(shadow) in (list, tuple):
            if len(shadow) != len(result):
                _stop("as many parts as numpy's")
            return type(shadow)(_result(r, s, (a,)) for r, s in zip(result, shadow, strict=True))
        return _result(result, shadow, (a,))

    _of(f)(move)
    if method is not None:
        _METHODS[method] = move


def _is_plain(v: Any) -> bool:
    return v is None or type(v) in (*_SCALARS, str) or (type(v) in (tuple, list) and all(_is_plain(e) for e in v))


def _transpose(t: torch.Tensor, axes: Any = None) -> torch.Tensor:
    return t.permute(tuple(reversed(range(t.dim()))) if axes is None else tuple(axes))


def _reshape(t: torch.Tensor, shape: Any, order: str = "C", *, copy: Any = None) -> torch.Tensor:
    if order != "C" or copy is not None:
        _stop("reshape in another order")
    return t.reshape(shape)


def _ravel(t: torch.Tensor, order: str = "C") -> torch.Tensor:
    return t.reshape(-1) if order == "C" else _stop("ravel in another order")


def _squeeze(t: torch.Tensor, axis: Any = None) -> torch.Tensor:
    return t.squeeze() if axis is None else t.squeeze(axis)


def _expand_dims(t: torch.Tensor, axis: Any) -> torch.Tensor:
    return t.unsqueeze(axis) if type(axis) is int else _stop("such an axis")


def _repeat(t: torch.Tensor, repeats: Any, axis: Any = None) -> torch.Tensor:
    if type(repeats) is not int:
        _stop("repeats that are not one number")
    return torch.repeat_interleave(t if axis is not None else t.reshape(-1), repeats, dim=0 if axis is None else axis)


def _roll(t: torch.Tensor, shift: Any, axis: Any = None) -> torch.Tensor:
    return torch.roll(t, shift) if axis is None else torch.roll(t, shift, axis)


def _split(t: torch.Tensor, parts: Any, axis: int = 0) -> Any:
    return torch.tensor_split(t, list(parts) if type(parts) is tuple else parts, axis)


def _sort(t: torch.Tensor, axis: int = -1) -> torch.Tensor:
    return torch.sort(t, dim=axis).values


def _diff(t: torch.Tensor, n: int = 1, axis: int = -1) -> torch.Tensor:
    return torch.diff(t, n, axis)


_elsewhere(np.transpose, _transpose)
_elsewhere(np.reshape, _reshape)
_elsewhere(np.ravel, _ravel)
_elsewhere(np.squeeze, _squeeze, "squeeze")
_elsewhere(np.expand_dims, _expand_dims)
_elsewhere(np.swapaxes, lambda t, axis1, axis2: t.transpose(axis1, axis2), "swapaxes")
_elsewhere(np.moveaxis, lambda a, source, destination: torch.movedim(a, source, destination))
_elsewhere(np.broadcast_to, lambda t, shape: t.expand((shape,) if type(shape) is int else shape))
_elsewhere(np.diagonal, lambda t, offset=0, axis1=0, axis2=1: torch.diagonal(t, offset, axis1, axis2), "diagonal")
_elsewhere(np.tile, lambda t, reps: t.tile((reps,) if type(reps) is int else tuple(reps)))
_elsewhere(np.repeat, _repeat, "repeat")
_elsewhere(np.roll, _roll)
_elsewhere(np.flip, lambda t, axis=None: _stop("an array of numpy is flipped"))
_elsewhere(np.split, _split)
_elsewhere(np.array_split, _split)
_elsewhere(np.tril, lambda t, k=0: torch.tril(t, k))
_elsewhere(np.triu, lambda t, k=0: torch.triu(t, k))
_elsewhere(np.sort, _sort)
_elsewhere(np.atleast_1d, torch.atleast_1d)
_elsewhere(np.atleast_2d, torch.atleast_2d)


@_of(np.meshgrid)
def _meshgrid(*xi: Any, copy: Any = True, sparse: Any = False, indexing: Any = "xy") -> Any:
    if copy is not True or type(sparse) is not bool or indexing not in ("xy", "ij"):
        _stop("such a grid")
    parts = [_operand(a) for a in xi]
    parts = [a if _is_array(a) else _constant(np.asarray(a)) for a in parts]
    shadows = _by_numpy(np.meshgrid, *(_shadow(a) for a in parts), sparse=sparse, indexing=indexing)
    made = []
    for i, (part, shadow) in enumerate(zip(parts, shadows, strict=True)):
        shape = [1] * len(parts)
        shape[1 - i if indexing == "xy" and i < 2 and len(parts) > 1 else i] = -1
        t = part._flashover_tensor.reshape(shape)
        made.append(_result(t.expand(shadow.shape).clone(memory_format=torch.contiguous_format), shadow, (part,)))
    return type(shadows)(made)


@_of(np.diff)
def _differences(a: Any, n: Any = 1, axis: Any = -1) -> Any:
    a = _operand(a)
    if not _is_array(a) or a._flashover_shadow.dtype.kind not in "fi" or type(n) is not int or type(axis) is not int:
        _stop("such differences")
    return _result(_try(_diff, a._flashover_tensor, n, axis), np.diff(a._flashover_shadow, n, axis), (a,))


def _joining(f: Callable[..., Any], compute: Callable[..., torch.Tensor]) -> None:
    def join(arrays: Any, *args: Any, **kwargs: Any) -> Any:
        _only(kwargs, "axis")
        if _is_array(arrays) and arrays._flashover_shadow.ndim > 1:
            arrays = [arrays[i] for i in range(len(arrays))]
        if type(arrays) not in (list, tuple) or not all(_is_plain(v) for v in args):
            _stop("such arrays to put together")
        parts = [_operand(a) for a in arrays]
        parts = [a if _is_array(a) else _constant(np.asarray(a)) for a in parts]
        shadow = _by_numpy(f, [_shadow(a) for a in parts], *args, **kwargs)
        dtype = _dtype(shadow.dtype)
        result = _try(compute, [a._flashover_tensor.to(dtype) for a in parts], *args, **kwargs)
        return _result(result, shadow, tuple(parts))

    _of(f)(join)


def _concatenate(parts: list, axis: Any = 0) -> torch.Tensor:
    return torch.cat([p.reshape(-1) for p in parts]) if axis is None else torch.cat(parts, axis)


_joining(np.concatenate, _concatenate)
_joining(np.stack, lambda parts, axis=0: torch.stack(parts, axis))
_joining(np.vstack, torch.vstack)
_joining(np.hstack, torch.hstack)
_joining(np.dstack, torch.dstack)
_joining(np.column_stack, torch.column_stack)


def _mixed(
    f: Callable[..., Any], compute: Callable[..., torch.Tensor], kinds: str, first_is_mask: bool = False
) -> None:
    """A function of several arrays, all taken to the dtype of the result."""

    def mix(*args: Any) -> Any:
        operands = tuple(_operand(a) for a in args)
        shadow = _by_numpy(f, *(_shadow(a) for a in operands))
        if not isinstance(shadow, (np.ndarray, np.generic)) or shadow.dtype.kind not in kinds:
            _stop(f"such a result of numpy.{f.__name__}")
        if first_is_mask and not (_is_array(operands[0]) and operands[0]._flashover_shadow.dtype.kind == "b"):
            _stop("a condition that is no array of bools")
        tensors = [
            operands[i]._flashover_tensor if first_is_mask and i == 0 else _as(a, shadow.dtype)
            for i, a in enumerate(operands)
        ]
        return _result(_try(compute, *tensors), shadow, operands)

    _of(f)(mix)


def _where(mask: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, *others) if len(others) == 2 else _stop("numpy.where with one argument")


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dim() == 0 or b.dim() == 0:
        return a * b
    return torch.matmul(a, b) if a.dim() <= 2 and b.dim() <= 2 else _stop("a dot product of many dimensions")


_mixed(np.where, _where, "fiubc", first_is_mask=True)
_mixed(np.dot, _dot, "fi")
_mixed(np.inner, lambda a, b: torch.inner(a, b) if a.dim() and b.dim() else a * b, "fi")
_mixed(np.outer, lambda a, b: torch.outer(a.reshape(-1), b.reshape(-1)), "fi")


@_of(np.einsum)
def _einsum(*args: Any, **kwargs: Any) -> Any:
    _only(kwargs, optimize=False)
    if not args or type(args[0]) is not str or len(args) < 2:
        _stop("such an einsum")
    operands = tuple(_operand(a) for a in args[1:])
    shadow = _by_numpy(np.einsum, args[0], *(_shadow(a) for a in operands))
    if shadow.dtype.kind not in "f":
        _stop("such an einsum")
    tensors = [_as(a, shadow.dtype) for a in operands]
    result = _try(torch.einsum, args[0], *tensors)
    if isinstance(shadow, np.ndarray) and any(_root(shadow) is _root(_shadow(a)) for a in operands if _is_array(a)):
        _stop("an einsum that is a view")
    return _result(result.clone(memory_format=torch.contiguous_format), shadow, operands)


@_of(np.clip, method="clip")
def _clip(a: Any, a_min: Any = None, a_max: Any = None, **kwargs: Any) -> Any:
    a_min, a_max = kwargs.pop("min", a_min), kwargs.pop("max", a_max)
    _only(kwargs, out=None)
    a = _operand(a)
    if not _is_array(a) or not all(v is None or type(v) in (int, float) for v in (a_min, a_max)):
        _stop("numpy.clip with such bounds")
    shadow = _by_numpy(np.clip, a._flashover_shadow, a_min, a_max)
    if shadow.dtype.kind not in "fiu":
        _stop("numpy.clip of such numbers")
    t = a._flashover_tensor.to(_dtype(shadow.dtype))
    if a_min is not None:
        t = torch.maximum(t, _as(a_min, shadow.dtype))
    if a_max is not None:
        t = torch.minimum(t, _as(a_max, shadow.dtype))
    return _result(t, shadow, (a,))


@_of(np.round, np.around, method="round")
def _round(a: Any, decimals: Any = 0, **kwargs: Any) -> Any:
    _only(kwargs, out=None)
    a = _operand(a)
    if not _is_array(a) or type(decimals) is not int or a._flashover_shadow.dtype.kind != "f":
        _stop("such a numpy.round")
    t, scale = a._flashover_tensor, 10.0 ** abs(decimals)
    if decimals and a._flashover_shadow.dtype == np.float16:
        _stop("numpy.round to decimals in float16")
    if decimals == 0:
        rounded = torch.round(t)
    else:
        rounded = torch.round(t * scale) / scale if decimals > 0 else torch.round(t / scale) * scale
    return _result(rounded, np.round(a._flashover_shadow, decimals), (a,))


@_of(np.linalg.norm)
def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False) -> Any:
    a = _operand(x)
    if not _is_array(a) or ord is not None or type(keepdims) is not bool or a._flashover_shadow.dtype.kind not in "fiu":
        _stop("such a norm")
    if (type(axis) is tuple and len(axis) != 2) or a._flashover_shadow.ndim == 0:
        _stop("such a norm")
    shadow = np.linalg.norm(a._flashover_shadow, axis=axis, keepdims=keepdims)
    t = _wide(a._flashover_tensor, shadow.dtype)
    result = torch.sqrt(torch.sum(t * t, _axes(axis, t.dim()), keepdim=keepdims)).to(_dtype(shadow.dtype))
    return _result(result, shadow, (a,))


@_of(np.nan_to_num)
def _nan_to_num(x: Any, copy: Any = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    a = _operand(x)
    if not _is_array(a) or copy is not True or a._flashover_shadow.dtype.kind != "f" or type(nan) not in (int, float):
        _stop("such a nan_to_num")
    if not all(v is None or type(v) in (int, float) for v in (posinf, neginf)):
        _stop("such a nan_to_num")
    shadow = np.nan_to_num(a._flashover_shadow, nan=nan, posinf=posinf, neginf=neginf)
    return _result(torch.nan_to_num(a._flashover_tensor, float(nan), posinf, neginf), shadow, (a,))


@_of(np.copy, method="copy")
def _copy(a: Any, order: Any = None) -> Any:
    a = _operand(a)
    if not _is_array(a) or order is not None:
        _stop("a copy in another order")
    return _result(a._flashover_tensor.clone(), np.copy(a._flashover_shadow), (a,))


def _method_copy(self: Array, order: Any = "C") -> Any:
    if order != "C":
        _stop("a copy in another order")
    t = self._flashover_tensor.clone(memory_format=torch.contiguous_format)
    return _result(t, self._flashover_shadow.copy(), (self,))


def _astype(self: Array, dtype: Any, **kwargs: Any) -> Any:
    _only(kwargs, copy=True)
    shadow = _by_numpy(self._flashover_shadow.astype, dtype)
    old, new = self._flashover_shadow.dtype.kind, shadow.dtype.kind
    fits = new not in "iu" or (new == "i" and shadow.dtype.itemsize == 8)  # else what is out of range is anything
    if (old == "c" and new != "c") or (old == "f" and not fits):
        _stop("numbers are cast that may not fit")
    t = self._flashover_tensor
    t = t != 0 if new == "b" else t.to(_dtype(shadow.dtype))
    return _result(t.clone() if t is self._flashover_tensor else t, shadow, (self,))


def _method_reshape(self: Array, *shape: Any, **kwargs: Any) -> Any:
    _only(kwargs, order="C")
    if len(shape) == 1 and type(shape[0]) in (tuple, list):
        shape = tuple(shape[0])
    return _FUNCTIONS[np.reshape](self, shape)


def _method_transpose(self: Array, *axes: Any) -> Any:
    if len(axes) == 1 and (axes[0] is None or type(axes[0]) in (tuple, list)):
        axes = axes[0]
    return _FUNCTIONS[np.transpose](self, tuple(axes) if axes else None)


def _method_flatten(self: Array, order: str = "C") -> Any:
    if order != "C":
        _stop("flatten in another order")
    return _result(self._flashover_tensor.reshape(-1), self._flashover_shadow.flatten(), (self,))


def _method_dot(self: Array, other: Any) -> Any:
    return _FUNCTIONS[np.dot](self, other)


def _method_fill(self: Array, value: Any) -> None:
    self[...] = value


def _of_scalar(a: Array) -> Array:
    """An array without dimensions."""
    return _result(a._flashover_tensor.clone(), np.array(a._flashover_shadow), (a,))


def _no_copy(f: Callable[..., Any]) -> Callable[..., Any]:
    """np.asarray and the like: of an array it is that array; of lists of numbers an array."""

    def convert(a: Any, dtype: Any = None, **kwargs: Any) -> Any:
        _only(kwargs, order=None)
        a = _operand(a)
        a = a if _is_array(a) else _constant(np.array(a))
        if isinstance(a._flashover_shadow, np.generic):
            a = _of_scalar(a)
        if dtype is not None and np.dtype(dtype) != a._flashover_shadow.dtype:
            return _astype(a, dtype)
        if f is np.ascontiguousarray and not a._flashover_shadow.flags.c_contiguous:
            return _method_copy(a)
        return a

    return convert


for _f in (np.asarray, np.ascontiguousarray, np.asanyarray):
    _of(_f)(_no_copy(_f))


@_of(np.array)
def _array(a: Any, dtype: Any = None, **kwargs: Any) -> Any:
    _only(kwargs, copy=True)
    if type(a) in (list, tuple) and any(_is_array(e) or type(e) is np.ndarray for e in a):
        made = _FUNCTIONS[np.stack](a)
        if np.array([_shadow(_operand(e)) for e in a]).dtype != made._flashover_shadow.dtype:
            _stop("such a list of arrays of numpy")
    elif _is_array(a) or type(a) is np.ndarray:
        a = _operand(a)
        made = _of_scalar(a) if isinstance(a._flashover_shadow, np.generic) else _copy(a)
    else:
        made = _constant(np.array(a if type(a) in _SCALARS else _plain(a)))
    return made if dtype is None or np.dtype(dtype) == made._flashover_shadow.dtype else _astype(made, dtype)


def _filled(name: str, value: Any) -> None:
    f = getattr(np, name + "_like")

    def like(a: Any, *args: Any, **kwargs: Any) -> Any:
        _only(kwargs, "dtype")
        a = _operand(a)
        if not all(type(v) in _SCALARS for v in args) or not _is_array(a) or len(args) != (value is None):
            _stop(f"such a numpy.{name}_like")
        shadow = f(a._flashover_shadow, *args, **kwargs)
        number = shadow.dtype.type(args[0] if value is None else value).item()
        return _result(torch.full(shadow.shape, number, dtype=_dtype(shadow.dtype)), shadow, (a,))

    _of(f)(like)


_filled("zeros", 0)
_filled("ones", 1)
_filled("full", None)


def _creator(f: Callable[..., Any]) -> None:
    def create(*args: Any, **kwargs: Any) -> Any:
        for v in (*args, *kwargs.values()):
            if not (
                _is_plain(v) or isinstance(v, (type, np.dtype)) or (isinstance(v, np.generic) and v.dtype in _DTYPES)
            ):
                _stop(f"such an argument of numpy.{f.__name__}")
        return _constant(f(*args, **kwargs))

    _of(f)(create)


for _f in (np.zeros, np.ones, np.full, np.arange, np.linspace, np.eye, np.identity, np.tri):
    _creator(_f)
_CREATORS = frozenset((np.zeros, np.ones, np.full, np.arange, np.linspace, np.eye, np.identity, np.tri, np.array))


@_of(np.shape)
def _shape(a: Any) -> Any:
    return np.shape(_shadow(_operand(a)))


@_of(np.ndim)
def _ndim(a: Any) -> Any:
    return np.ndim(_shadow(_operand(a)))


@_of(np.size)
def _size(a: Any, axis: Any = None) -> Any:
    return np.size(_shadow(_operand(a)), axis)


_METHODS.update(
    copy=_method_copy,
    astype=_astype,
    reshape=_method_reshape,
    transpose=_method_transpose,
    flatten=_method_flatten,
    ravel=lambda self, order="C": _FUNCTIONS[np.ravel](self, order),
    dot=_method_dot,
    fill=_method_fill,
)


def _positional(f: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """Methods take what functions take by name by place too."""

    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        if len(args) > len(names):
            _stop("a method of an array of numpy with so many arguments")
        return f(self, **dict(zip(names, args, strict=False)), **kwargs)

    return method


def _define_methods() -> None:
    for name in ("sum", "mean", "prod", "std", "var"):
        _METHODS[name] = _positional(_METHODS[name], ("axis", "dtype"))
    for name in ("max", "min", "any", "all", "argmax", "argmin"):
        _METHODS[name] = _positional(_METHODS[name], ("axis",))
    _METHODS["cumsum"] = _positional(_METHODS["cumsum"], ("axis", "dtype"))
    _METHODS["cumprod"] = _positional(_METHODS["cumprod"], ("axis", "dtype"))
    for name, f in _METHODS.items():

        def method(self: Array, *args: Any, f: Callable[..., Any] = f, name: str = name, **kwargs: Any) -> Any:
            if isinstance(self._flashover_shadow, np.generic) and name != "astype":
                _stop(f"{name} of a scalar of numpy")
            return _handed(f(self, *args, **kwargs))

        _define(name, method)

    def known(name: str) -> property:
        return property(lambda self: getattr(self._flashover_shadow, name))

    for name in ("shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides"):
        setattr(Array, name, known(name))
    Array.T = property(lambda self: _FUNCTIONS[np.transpose](self))  # type: ignore[attr-defined]


def _handed(result: Any) -> Any:
    """What stands for an array from before the trace is that array."""
    if _is_array(result) and result._flashover_origin is not None:
        return result._flashover_origin
    return result


from flashover import _array_functions  # noqa: E402, F401  (more rows, which need all of the above)

_define_operators()
_define_methods()


# ---- what the interpreter calls ----


def call(f: Any, args: tuple, kwargs: dict) -> Any:
    """A function of numpy is called, and there are arrays among its arguments."""
    if isinstance(f, np.ufunc):
        return _handed(_ufunc(f, args, kwargs))
    known = _FUNCTIONS.get(f)
    if known is None:
        _stop(f"call of numpy.{getattr(f, '__name__', '?')}")
    try:
        return _handed(known(*args, **kwargs))
    except TypeError as e:
        if e.__traceback__ is not None and e.__traceback__.tb_next is None:  # arguments that are not known here
            _stop(f"call of numpy.{f.__name__} with such arguments")
        raise


def creates(f: Any) -> bool:
    return f in _CREATORS


def to_tensor(name: str, args: tuple, kwargs: dict) -> torch.Tensor:
    """torch.from_numpy, as_tensor, asarray and tensor of an array."""
    a = _operand(args[0])
    if not _is_array(a) or len(args) != 1:
        _stop(f"call of torch.{name}")
    t, shadow = a._flashover_tensor, a._flashover_shadow
    if (isinstance(shadow, np.generic) and name == "from_numpy") or not (name == "tensor" or shadow.flags.writeable):
        _stop(f"call of torch.{name} of a scalar")
    dtype, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
    _only(kwargs, requires_grad=False)
    if name == "from_numpy" and (dtype is not None or device is not None):
        _stop("arguments of torch.from_numpy")
    if device is None and torch.get_default_device().type != "cpu":
        _stop("an array of numpy under a default device")
    if isinstance(shadow, np.generic):
        t = t.clone()
    if name == "tensor":
        made = t.clone(memory_format=torch.contiguous_format).detach()
    else:
        made = t.view_as(t) if t.requires_grad else t.detach()
        if isinstance(shadow, np.ndarray):
            a._flashover_state.shared = True
    if (dtype is None or dtype == t.dtype) and (device is None or torch.device(device) == t.device):
        return made
    return made.to(device=device, dtype=dtype)
