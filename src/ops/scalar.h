// What the pointwise prims and prim.convert compute, one scalar at a time, as eager does: for the interpreter of loops,
// which generated kernels are compared with, and for the constant evaluator of graph passes.
//
//   In        operands in compute dtypes: f32, f64, bool and the integers; bf16 and f16 are widened before
//   Out       the result in its dtype: f32 rounded to float, integers wrapped
//   Promises  where C++ leaves a conversion undefined, some result and no trap
//   Declines  an operation on a dtype that its row in prims.def does not name: InternalError
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>

#include "base/check.h"
#include "ops/names.h"
#include "ops/types.h"

namespace flashover::ops {

constexpr int arity(Prim pointwise) {
  constexpr int8_t kArity[] = {
#define POINTWISE(name, arity, types, cost, traits, meaning) arity,
#include "ops/prims.def"
  };
  return kArity[static_cast<size_t>(pointwise)];
}

// Floats live in f (f32 values already rounded to float), integers and bool in i (u64 as its bits).
struct Scalar {
  double f = 0;
  int64_t i = 0;
};

namespace detail {

inline double erfinv(double y) {
  if (y <= -1 || y >= 1) return y == 1 ? INFINITY : y == -1 ? -INFINITY : NAN;
  double w = -std::log((1 - y) * (1 + y)), a = 0.147, t = 2 / (M_PI * a) - w / 2;
  double x = std::copysign(std::sqrt(std::sqrt(t * t + w / a) - t), y);
  for (int k = 0; k < 4; ++k) x -= (std::erf(x) - y) / (2 / std::sqrt(M_PI) * std::exp(-x * x));
  return x;
}
inline double digamma(double x) {
  if (x == 0) return std::copysign(INFINITY, -x);
  if (x < 0) return x == std::floor(x) ? NAN : digamma(1 - x) - M_PI / std::tan(M_PI * x);
  double shift = 0;
  for (; x < 10; x += 1) shift -= 1 / x;
  double z = 1 / (x * x);
  return shift + std::log(x) - 0.5 / x - z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z / 132))));
}
// The power series while its terms are few, then the asymptotic one, whose terms shrink until k is about 2x.
inline double i0(double x) {
  x = std::fabs(x);
  if (x > 800) return INFINITY;
  double sum = 1, term = 1;
  if (x < 20) {
    for (int k = 1; term > sum * 1e-17; ++k) sum += term *= x * x / (4.0 * k * k);
    return sum;
  }
  for (int k = 1; term > 1e-17; ++k) sum += term *= (2 * k - 1) * (2 * k - 1) / (8.0 * k * x);
  return std::exp(x / 2) * (sum / std::sqrt(2 * M_PI * x)) * std::exp(x / 2);
}
template <typename T>
T python_mod(T a, T b) {
  T r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
// As torch.floor_divide: correct also where a/b rounds up to an integer.
template <typename T>
T floor_divide(T a, T b) {
  if (b == 0) return a / b;
  T m = std::fmod(a, b), d = (a - m) / b;
  if (m != 0 && (b < 0) != (m < 0)) d -= 1;
  if (d == 0) return std::copysign(T(0), a / b);
  T f = std::floor(d);
  return d - f > T(0.5) ? f + 1 : f;
}

template <typename T>
T float_unary(Prim op, T a) {
  switch (op) {
    case Prim::neg:
      return -a;
    case Prim::abs:
      return std::fabs(a);
    case Prim::sign:
      return a > 0 ? 1 : a < 0 ? -1 : 0;
    case Prim::ceil:
      return std::ceil(a);
    case Prim::floor:
      return std::floor(a);
    case Prim::round:
      return std::nearbyint(a);
    case Prim::trunc:
      return std::trunc(a);
    case Prim::exp:
      return std::exp(a);
    case Prim::exp2:
      return std::exp2(a);
    case Prim::expm1:
      return std::expm1(a);
    case Prim::log:
      return std::log(a);
    case Prim::log2:
      return std::log2(a);
    case Prim::log10:
      return std::log10(a);
    case Prim::log1p:
      return std::log1p(a);
    case Prim::sqrt:
      return std::sqrt(a);
    case Prim::rsqrt:
      return 1 / std::sqrt(a);
    case Prim::reciprocal:
      return 1 / a;
    case Prim::sin:
      return std::sin(a);
    case Prim::cos:
      return std::cos(a);
    case Prim::tan:
      return std::tan(a);
    case Prim::asin:
      return std::asin(a);
    case Prim::acos:
      return std::acos(a);
    case Prim::atan:
      return std::atan(a);
    case Prim::sinh:
      return std::sinh(a);
    case Prim::cosh:
      return std::cosh(a);
    case Prim::tanh:
      return std::tanh(a);
    case Prim::asinh:
      return std::asinh(a);
    case Prim::acosh:
      return std::acosh(a);
    case Prim::atanh:
      return std::atanh(a);
    case Prim::erf:
      return std::erf(a);
    case Prim::erfc:
      return std::erfc(a);
    case Prim::erfinv:
      return static_cast<T>(erfinv(a));
    case Prim::lgamma:
      return std::lgamma(a);
    case Prim::digamma:
      return static_cast<T>(digamma(a));
    case Prim::i0:
      return static_cast<T>(i0(a));
    case Prim::sigmoid:
      return 1 / (1 + std::exp(-a));
    case Prim::relu:
      return a < 0 ? 0 : a;
    default:
      FLASHOVER_CHECK(false) << "no operation on a float: " << name(op);
      return 0;
  }
}

template <typename T>
T float_binary(Prim op, T a, T b) {
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  switch (op) {
    case Prim::add:
      return a + b;
    case Prim::sub:
      return a - b;
    case Prim::mul:
      return a * b;
    case Prim::div:
      return a / b;
    case Prim::floordiv:
      return floor_divide(a, b);
    case Prim::truncdiv:
      return std::trunc(a / b);
    case Prim::fmod:
      return std::fmod(a, b);
    case Prim::remainder:
      return python_mod(a, b);
    case Prim::pow:
      return std::pow(a, b);
    case Prim::atan2:
      return std::atan2(a, b);
    case Prim::hypot:
      return std::hypot(a, b);
    case Prim::copysign:
      return std::copysign(a, b);
    case Prim::nextafter:
      return std::nextafter(a, b);
    case Prim::minimum:
      return std::isnan(a) || std::isnan(b) ? kNan : std::min(a, b);
    case Prim::maximum:
      return std::isnan(a) || std::isnan(b) ? kNan : std::max(a, b);
    case Prim::fmin:
      return std::fmin(a, b);
    case Prim::fmax:
      return std::fmax(a, b);
    default:
      FLASHOVER_CHECK(false) << "no operation on two floats: " << name(op);
      return 0;
  }
}

template <typename T>
T float_op(Prim op, T a, T b, T c) {
  if (op == Prim::fma) return a * b + c;
  return arity(op) == 1 ? float_unary(op, a) : float_binary(op, a, b);
}

// T: int64_t or uint64_t, here and below.
template <typename T>
T divide_op(Prim op, T a, T b) {
  using U = uint64_t;
  FLASHOVER_CHECK(b != T(0)) << "integer division by zero";
  if (std::is_signed_v<T> && b == static_cast<T>(-1))  // INT64_MIN / -1
    return op == Prim::fmod || op == Prim::remainder ? T(0) : static_cast<T>(U(0) - static_cast<U>(a));
  T q = a / b, r = a % b;
  bool adjust = r != 0 && (r < T(0)) != (b < T(0));
  switch (op) {
    case Prim::truncdiv:
      return q;
    case Prim::floordiv:
      return adjust ? q - 1 : q;
    case Prim::fmod:
      return r;
    case Prim::remainder:
      return adjust ? r + b : r;
    default:
      FLASHOVER_CHECK(false) << "no integer operation " << name(op);
      return 0;
  }
}

template <typename T>
T int_op(Prim op, T a, T b) {
  using U = uint64_t;
  switch (op) {
    case Prim::neg:
      return static_cast<T>(U(0) - static_cast<U>(a));
    case Prim::abs:
      return std::is_signed_v<T> && a < T(0) ? static_cast<T>(U(0) - static_cast<U>(a)) : a;
    case Prim::sign:
      return a > T(0) ? 1 : a == T(0) ? 0 : static_cast<T>(-1);
    case Prim::relu:
      return std::max(a, T(0));
    case Prim::logical_not:
      return !a;
    case Prim::bitwise_not:
      return ~a;
    case Prim::add:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    case Prim::sub:
      return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
    case Prim::mul:
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    case Prim::minimum:
    case Prim::fmin:
      return std::min(a, b);
    case Prim::maximum:
    case Prim::fmax:
      return std::max(a, b);
    case Prim::bitwise_and:
      return a & b;
    case Prim::bitwise_or:
      return a | b;
    case Prim::bitwise_xor:
      return a ^ b;
    case Prim::shift_left:
      return static_cast<U>(b) > 63 ? T(0) : static_cast<T>(static_cast<U>(a) << b);
    case Prim::shift_right:
      return static_cast<U>(b) > 63 ? (a < T(0) ? static_cast<T>(-1) : T(0)) : a >> b;
    case Prim::pow: {
      if (std::is_signed_v<T> && b < T(0)) return a == T(1) ? 1 : a == static_cast<T>(-1) ? (b % 2 ? a : T(1)) : T(0);
      U r = 1, x = static_cast<U>(a);
      for (U n = static_cast<U>(b); n; n >>= 1, x *= x)
        if (n & 1) r *= x;
      return static_cast<T>(r);
    }
    default:
      return divide_op(op, a, b);
  }
}

template <typename T>
bool compare_op(Prim op, T a, T b) {
  switch (op) {
    case Prim::eq:
      return a == b;
    case Prim::ne:
      return a != b;
    case Prim::lt:
      return a < b;
    case Prim::le:
      return a <= b;
    case Prim::gt:
      return a > b;
    default:
      return a >= b;
  }
}

inline int64_t wrap_int(DType d, int64_t v) {
  switch (d) {
    case DType::kU8:
      return static_cast<uint8_t>(v);
    case DType::kI8:
      return static_cast<int8_t>(v);
    case DType::kI16:
      return static_cast<int16_t>(v);
    case DType::kU16:
      return static_cast<uint16_t>(v);
    case DType::kI32:
      return static_cast<int32_t>(v);
    case DType::kU32:
      return static_cast<uint32_t>(v);
    case DType::kBool:
      return v != 0;
    default:
      return v;
  }
}
inline bool is_float(DType d) { return d == DType::kF32 || d == DType::kF64; }

}  // namespace detail

// Of operands of dtype `operand`; where: of its last two, and `a` is a bool.
inline Scalar compute(Prim op, DType operand, const Scalar& a, const Scalar& b = {}, const Scalar& c = {}) {
  if (op == Prim::where) return a.i ? b : c;
  Scalar r;
  bool compares = op >= Prim::eq && op <= Prim::ge;
  if (detail::is_float(operand)) {
    if (op == Prim::isnan) {
      r.i = std::isnan(a.f);
    } else if (op == Prim::isinf) {
      r.i = std::isinf(a.f);
    } else if (op == Prim::signbit) {
      r.i = std::signbit(a.f);
    } else if (compares) {
      r.i = detail::compare_op(op, a.f, b.f);
    } else if (operand == DType::kF32) {
      r.f = detail::float_op<float>(op, static_cast<float>(a.f), static_cast<float>(b.f), static_cast<float>(c.f));
    } else {
      r.f = detail::float_op<double>(op, a.f, b.f, c.f);
    }
  } else if (op == Prim::signbit) {
    r.i = info(operand).is_signed && a.i < 0;
  } else if (operand == DType::kU64) {
    auto x = static_cast<uint64_t>(a.i), y = static_cast<uint64_t>(b.i);
    r.i = compares ? detail::compare_op(op, x, y) : static_cast<int64_t>(detail::int_op<uint64_t>(op, x, y));
  } else {
    if (operand == DType::kBool && op == Prim::bitwise_not) op = Prim::logical_not;
    r.i =
        compares ? detail::compare_op(op, a.i, b.i) : detail::wrap_int(operand, detail::int_op<int64_t>(op, a.i, b.i));
  }
  return r;
}

inline Scalar convert(DType from, DType to, Scalar v) {
  Scalar r;
  if (detail::is_float(from)) {
    if (detail::is_float(to)) {
      r.f = to == DType::kF32 ? static_cast<float>(v.f) : v.f;
    } else if (to == DType::kBool) {
      r.i = v.f != 0;
    } else if (to == DType::kU64 && v.f >= 9.2e18) {
      r.i = static_cast<int64_t>(static_cast<uint64_t>(v.f));
    } else {  // out of range is undefined in eager too; saturate so that the reference has no undefined behaviour
      r.i = detail::wrap_int(to, std::isnan(v.f)  ? INT64_MIN
                                 : v.f >= 9.2e18  ? INT64_MAX
                                 : v.f <= -9.2e18 ? INT64_MIN
                                                  : static_cast<int64_t>(v.f));
    }
  } else if (detail::is_float(to)) {
    r.f = from == DType::kU64 ? static_cast<double>(static_cast<uint64_t>(v.i)) : static_cast<double>(v.i);
    if (to == DType::kF32)
      r.f = from == DType::kU64 ? static_cast<float>(static_cast<uint64_t>(v.i)) : static_cast<float>(v.i);
  } else {
    r.i = detail::wrap_int(to, v.i);
  }
  return r;
}

}  // namespace flashover::ops
