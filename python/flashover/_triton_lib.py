"""Functions that generated Triton kernels call. Imported by compile workers (which have neither torch nor flashover)
and, with TRITON_INTERPRET=1, by tests. Nothing here links libdevice unless a kernel uses it: that costs 16 ms."""

import os

import triton
import triton.language as tl

INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"

if INTERPRET:
    import math

    import numpy as np

    class libdevice:
        """The interpreter knows no external functions: numpy does them."""

        @staticmethod
        def _call(function, *args):
            from triton.language import core
            from triton.runtime import interpreter

            first = next(a for a in args if isinstance(a, core.tensor))
            data = [a.handle.data if isinstance(a, core.tensor) else np.float64(a) for a in args]
            with np.errstate(all="ignore"):
                out = function(*data).astype(first.handle.data.dtype)
            return core.tensor(interpreter.TensorHandle(out, first.handle.dtype), first.type)

    def _numpy(name, function):
        setattr(libdevice, name, staticmethod(lambda *args: libdevice._call(function, *args)))

    _vector = lambda f: np.vectorize(f, otypes=[np.float64])  # noqa: E731

    def _lgamma(x):
        try:
            return math.lgamma(x) if math.isfinite(x) else abs(x)
        except (ValueError, OverflowError):
            return math.inf

    for _name, _function in {
        "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "expm1": np.expm1, "log": np.log,
        "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "exp2": np.exp2, "tan": np.tan, "asin": np.arcsin,
        "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
        "acosh": np.arccosh, "atanh": np.arctanh, "erf": _vector(math.erf), "erfc": _vector(math.erfc),
        "lgamma": _vector(_lgamma), "cyl_bessel_i0": np.i0, "pow": np.power, "fmod": np.fmod, "atan2": np.arctan2,
        "hypot": np.hypot, "copysign": np.copysign, "nextafter": np.nextafter, "rsqrt": lambda x: 1 / np.sqrt(x),
        "sqrt": np.sqrt,
    }.items():  # fmt: skip
        _numpy(_name, _function)
else:
    from triton.language.extra import libdevice
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Constants that jit functions may read.
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
ON_GPU: tl.constexpr = tl.constexpr(not INTERPRET)


# ---- kernels in a row (sm_90): the next one may start, and waits for what the others have written
@triton.jit
def let_next_start():
    if ON_GPU:
        gdc_launch_dependents()


@triton.jit
def wait_for_kernels_before():
    if ON_GPU:
        gdc_wait()


# ---- 8-bit floats in memory, as bits: ATen's rounding; what is too large is no number (e4m3) or infinite (e5m2), where
# the hardware's conversions saturate
@triton.jit
def from_e4m3(x):
    bits = x.to(tl.int32)
    half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), half.to(tl.float32) * 256.0)


@triton.jit
def from_e5m2(x):
    return (x.to(tl.int32) << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def to_e4m3(x):
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    normal = (size - 0x3C000000 + 0x7FFFF + ((size >> 20) & 1)) >> 20
    low = tl.where(size >= 0x43F00000, 0x7F, tl.where(size < 0x3C800000, small, normal))
    return (low | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def to_e5m2(x):
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    small = (size.to(tl.float32, bitcast=True) + 128.0).to(tl.int32, bitcast=True) - 0x43000000
    normal = (size - 0x38000000 + 0xFFFFF + ((size >> 21) & 1)) >> 21
    large = tl.where(size > 0x7F800000, 0x7F, 0x7C)
    low = tl.where(size >= 0x47800000, large, tl.where(size < 0x38800000, small, normal))
    return (low | ((bits >> 24) & 0x80)).to(tl.uint8)


# ---- integers: Triton divides towards zero
@triton.jit
def floor_div(a, b):
    q = a // b
    r = a - q * b
    return q - ((r != 0) & ((r < 0) != (b < 0))).to(q.dtype)


@triton.jit
def floor_mod(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def int_pow(a, n):
    a, n = tl.broadcast(a, n)
    out = tl.full(a.shape, 1, a.dtype)
    base = a
    e = n
    for _ in range(64):
        out = tl.where((e > 0) & (e % 2 != 0), out * base, out)
        base = base * base
        e = tl.where(e > 0, e // 2, e)
    inverse = tl.where(a == 1, 1, tl.where(a == -1, tl.where(n % 2 == 0, 1, -1), 0)).to(a.dtype)
    return tl.where(n < 0, inverse, out)


@triton.jit
def shift_left(a, n):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    return tl.where((n >= 0) & (n < bits), a << n, 0).to(a.dtype)


@triton.jit
def shift_right(a, n):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    return a >> tl.where((n >= 0) & (n < bits), n, bits - 1).to(a.dtype)


@triton.jit
def sign(a):
    return tl.where(a > 0, 1, tl.where(a < 0, -1, 0)).to(a.dtype)


# ---- minima and maxima: NaN wins
@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def fmin(a, b):  # NaN loses
    return tl.where(a != a, b, tl.where(b != b, a, tl.minimum(a, b)))


@triton.jit
def fmax(a, b):
    return tl.where(a != a, b, tl.where(b != b, a, tl.maximum(a, b)))


@triton.jit
def int_minimum(a, b):
    return tl.minimum(a, b)


@triton.jit
def int_maximum(a, b):
    return tl.maximum(a, b)


# ---- reductions
@triton.jit
def add(a, b):
    return a + b


@triton.jit
def mul(a, b):
    return a * b


@triton.jit
def any_(a, b):
    return a | b


@triton.jit
def all_(a, b):
    return a & b


@triton.jit
def argmax(a, i, b, j):
    first = (a > b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def argmin(a, i, b, j):
    first = (a < b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


# One more value per lane, in the order of their positions.
@triton.jit
def next_argmax(a, i, b, j):
    take = ((b <= a) == 0) & (a == a)
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def next_argmin(a, i, b, j):
    take = ((b >= a) == 0) & (a == a)
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def int_argmax(a, i, b, j):
    first = (a > b) | ((a == b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def int_argmin(a, i, b, j):
    first = (a < b) | ((a == b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


# ---- floats
@triton.jit
def _one(x, code: tl.constexpr):
    """One PTX instruction on f32."""
    return tl.inline_asm_elementwise(code + " $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def floor(x):
    if ON_GPU and x.dtype == tl.float32:
        return _one(x, "cvt.rmi.f32.f32")
    return libdevice.floor(x)


@triton.jit
def ceil(x):
    if ON_GPU and x.dtype == tl.float32:
        return _one(x, "cvt.rpi.f32.f32")
    return libdevice.ceil(x)


@triton.jit
def trunc(x):
    if ON_GPU and x.dtype == tl.float32:
        return _one(x, "cvt.rzi.f32.f32")
    return libdevice.trunc(x)


@triton.jit
def round(x):  # to the nearest, ties to even
    if ON_GPU and x.dtype == tl.float32:
        return _one(x, "cvt.rni.f32.f32")
    return libdevice.rint(x)


@triton.jit
def div(a, b):
    if a.dtype == tl.float32 and b.dtype == tl.float32:
        return tl.div_rn(a, b)
    return a / b


@triton.jit
def sqrt(x):
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    return tl.sqrt(x)


@triton.jit
def fast_sqrt(x):
    if ON_GPU:
        return _one(x, "sqrt.approx.f32")
    return tl.sqrt(x)


@triton.jit
def rsqrt(x):
    if ON_GPU and x.dtype == tl.float32:
        return _one(x, "rsqrt.approx.f32")
    return libdevice.rsqrt(x)


@triton.jit
def sigmoid(x):
    d = 1.0 + tl.exp(-x)
    return div(tl.full(d.shape, 1.0, d.dtype), d)


@triton.jit
def exp2(x):
    if ON_GPU and x.dtype == tl.float32:
        return _one(x, "ex2.approx.f32")
    return libdevice.exp2(x)


@triton.jit
def fast_log(x):
    """Absolute error 1e-7 near 1, relative 1e-7 elsewhere."""
    if ON_GPU:
        return _one(x, "lg2.approx.f32") * LN2
    return libdevice.log(x)


@triton.jit
def _log_f32(x):
    """Cephes' logf: mantissa in [sqrt(1/2), sqrt(2)), polynomial of degree 8."""
    small = x < 1.17549435e-38
    y = tl.where(small, x * 8388608.0, x)
    bits = y.to(tl.int32, bitcast=True)
    e = (bits >> 23) - 126
    m = ((bits & 0x007FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)
    low = m < 0.70710678
    e = tl.where(low, e - 1, e) - tl.where(small, 23, 0)
    f = tl.where(low, m + m, m) - 1.0
    z = f * f
    p = 7.0376836292e-2
    p = p * f - 1.1514610310e-1
    p = p * f + 1.1676998740e-1
    p = p * f - 1.2420140846e-1
    p = p * f + 1.4249322787e-1
    p = p * f - 1.6668057665e-1
    p = p * f + 2.0000714765e-1
    p = p * f - 2.4999993993e-1
    p = p * f + 3.3333331174e-1
    n = e.to(tl.float32)
    y = f * z * p + n * -2.12194440e-4 - 0.5 * z
    y = f + y + n * 0.693359375
    y = tl.where(x == float("inf"), x, y)
    return tl.where(x > 0, y, tl.where(x == 0, float("-inf"), float("nan")))


# (What stands behind a branch that returned is still compiled, for the type at hand.)
@triton.jit
def log(x):
    if x.dtype == tl.float32:
        return _log_f32(x)
    else:
        return libdevice.log(x)


@triton.jit
def log2(x):
    return libdevice.log2(x)


@triton.jit
def log10(x):
    return libdevice.log10(x)


@triton.jit
def _log1p_f32(x):
    # log(u) * x / (u - 1) undoes the rounding of u = 1 + x
    u = 1.0 + x
    d = u - 1.0
    y = log(u) * tl.div_rn(x, tl.where(d == 0, 1.0, d))
    return tl.where(d == 0, x, tl.where(u == float("inf"), u, y))


@triton.jit
def log1p(x):
    if x.dtype == tl.float32:
        return _log1p_f32(x)
    else:
        return libdevice.log1p(x)


@triton.jit
def expm1(x):
    if x.dtype != tl.float32:
        return libdevice.expm1(x)
    # Near 0 a polynomial (error 1e-8), elsewhere the difference loses nothing.
    p = 1.9841270e-4
    p = p * x + 1.3888889e-3
    p = p * x + 8.3333333e-3
    p = p * x + 4.1666668e-2
    p = p * x + 1.6666667e-1
    p = p * x + 0.5
    y = tl.where(tl.abs(x) < 0.35, x + x * x * p, tl.exp(x) - 1.0)
    return copysign(y, x)  # of a zero, too


@triton.jit
def tanh(x):
    """f32 as Cephes' tanhf."""
    if x.dtype != tl.float32:
        return libdevice.tanh(x)
    a = tl.abs(x)
    z = x * x
    p = -5.70498872745e-3
    p = p * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    near = p * z * a + a
    far = 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)
    return copysign(tl.where(a < 0.625, near, far), x)


@triton.jit
def fast_tanh(x):
    """Relative error 2^-11: for results in 16 bits."""
    if ON_GPU:
        return _one(x, "tanh.approx.f32")
    return libdevice.tanh(x)


@triton.jit
def fast_erf(x):
    """Absolute error 1e-6: for results in 16 bits."""
    z = tl.abs(x)
    q = -0.00294410251 * z + 0.0295898598
    q = q * z - 0.148665428
    q = q * z - 0.918509424
    q = q * z - 1.62788904
    h = exp2(z * q)  # erfc
    return copysign(1.0 - h, x)


@triton.jit
def erf(x):
    if ON_GPU:
        return tl.erf(x)
    return libdevice.erf(x)


@triton.jit
def erfc(x):
    return libdevice.erfc(x)


@triton.jit
def erfinv(x):
    """Giles' approximation, then two steps of Newton's method with erf itself."""
    w = -log((1.0 - x) * (1.0 + x))
    near = w < 5.0
    a = w - 2.5
    p = 2.81022636e-08
    p = p * a + 3.43273939e-07
    p = p * a - 3.5233877e-06
    p = p * a - 4.39150654e-06
    p = p * a + 0.00021858087
    p = p * a - 0.00125372503
    p = p * a - 0.00417768164
    p = p * a + 0.246640727
    p = p * a + 1.50140941
    b = sqrt(w) - 3.0
    q = -0.000200214257
    q = q * b + 0.000100950558
    q = q * b + 0.00134934322
    q = q * b - 0.00367342844
    q = q * b + 0.00573950773
    q = q * b - 0.0076224613
    q = q * b + 0.00943887047
    q = q * b + 1.00167406
    q = q * b + 2.83297682
    y = tl.where(near, p, q) * x
    for _ in range(2):
        step = (erf(y) - x) / (1.1283791670955126 * tl.exp(-y * y))
        y = tl.where(tl.abs(y) < 5.0, y - step, y)
    y = tl.where(x == 1.0, float("inf"), tl.where(x == -1.0, float("-inf"), y))
    return tl.where(tl.abs(x) <= 1.0, y, float("nan"))


@triton.jit
def lgamma(x):
    return libdevice.lgamma(x)


@triton.jit
def digamma(x):
    """Recurrence up to 10, then the asymptotic series; reflection below 0."""
    below = x < 0
    whole = x == floor(x)
    y = tl.where(below, 1.0 - x, x)
    shift = tl.full(y.shape, 0.0, y.dtype)
    for _ in range(10):
        small = y < 10
        shift = tl.where(small, shift - 1.0 / tl.where(y == 0, 1.0, y), shift)
        y = tl.where(small, y + 1.0, y)
    z = 1.0 / (y * y)
    r = shift + log(y) - 0.5 / y - z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z / 132))))
    fraction = x - round(x)
    r = tl.where(below, r - 3.141592653589793 / tan(3.141592653589793 * fraction), r)
    r = tl.where(below & whole, float("nan"), r)
    return tl.where(x == 0, tl.where(signbit(x), float("inf"), float("-inf")), r)


@triton.jit
def cyl_bessel_i0(x):
    return libdevice.cyl_bessel_i0(x)


@triton.jit
def tan(x):
    return libdevice.tan(x)


@triton.jit
def asin(x):
    return libdevice.asin(x)


@triton.jit
def acos(x):
    return libdevice.acos(x)


@triton.jit
def atan(x):
    return libdevice.atan(x)


@triton.jit
def sinh(x):
    return libdevice.sinh(x)


@triton.jit
def cosh(x):
    return libdevice.cosh(x)


@triton.jit
def asinh(x):
    return libdevice.asinh(x)


@triton.jit
def acosh(x):
    return libdevice.acosh(x)


@triton.jit
def atanh(x):
    return libdevice.atanh(x)


@triton.jit
def pow(a, b):
    return libdevice.pow(a, b)


@triton.jit
def fmod(a, b):
    return libdevice.fmod(a, b)


@triton.jit
def remainder(a, b):
    r = fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def floor_divide(a, b):
    m = fmod(a, b)
    a, b = tl.where(m == m, a, a), tl.where(m == m, b, b)  # either may be a Python number
    d = div(a - m, b)
    d = tl.where((m != 0) & ((b < 0) != (m < 0)), d - 1.0, d)
    f = floor(d)
    f = tl.where(d - f > 0.5, f + 1.0, f)
    f = tl.where(d == 0, copysign(d, div(a, b)), f)
    return tl.where(b == 0, div(a, b), f)


@triton.jit
def atan2(a, b):
    return libdevice.atan2(a, b)


@triton.jit
def hypot(a, b):
    return libdevice.hypot(a, b)


@triton.jit
def copysign(a, b):
    return libdevice.copysign(a, b)


@triton.jit
def nextafter(a, b):
    return libdevice.nextafter(a, b)


@triton.jit
def signbit(x):
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0


# ---- random numbers of torch's CUDA generator (prim.uniform in src/ops/prims.def says which is whose)
@triton.jit
def _philox(seed, offset, first, call, thread):
    counter = (offset >> 2) + first + call
    thread = thread.to(tl.uint32)
    return tl.philox(seed, counter.to(tl.uint32), (counter >> 32).to(tl.uint32), thread, thread * 0)


@triton.jit
def _in_unit(bits):
    return bits.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10


@triton.jit
def uniform(seed, offset, first, call, thread, lane):
    a, b, c, d = _philox(seed, offset, first, call, thread)
    return _in_unit(tl.where(lane == 0, a, tl.where(lane == 1, b, tl.where(lane == 2, c, d))))


@triton.jit
def _side_by_side(a, b, c, d, M: tl.constexpr, N: tl.constexpr):
    if N == 0:
        v = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [M])
    else:
        v = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [M, N])
    return v


@triton.jit
def uniform_fours(seed, offset, first, call, thread, M: tl.constexpr, N: tl.constexpr = 0):
    a, b, c, d = _philox(seed, offset, first, call, thread)
    return _in_unit(_side_by_side(a, b, c, d, M, N))


# As curand does it, bit for bit: the exact logarithm and root, the hardware's sine and cosine.
@triton.jit
def _radius(bits):
    return tl.sqrt_rn(-2.0 * libdevice.log(_in_unit(bits)))


@triton.jit
def _angle(bits):
    turn: tl.constexpr = 1.4629180792671596e-09
    return tl.fma(bits.to(tl.float32), turn, turn / 2)


@triton.jit
def _sine(x):
    if ON_GPU:
        return tl.inline_asm_elementwise("sin.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return tl.sin(x)


@triton.jit
def _cosine(x):
    if ON_GPU:
        return tl.inline_asm_elementwise("cos.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return tl.cos(x)


@triton.jit
def _rounded_product(a, b):
    """That no sum behind it takes in: the numbers that are drawn are eager's whatever is done with them."""
    if ON_GPU:
        return tl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], tl.float32, True, 1)
    return a * b


@triton.jit
def normal(seed, offset, first, call, thread, lane):
    a, b, c, d = _philox(seed, offset, first, call, thread)
    angle = _angle(tl.where(lane < 2, b, d))
    turned = tl.where(lane % 2 == 0, _sine(angle), _cosine(angle))
    return _rounded_product(turned, _radius(tl.where(lane < 2, a, c)))
