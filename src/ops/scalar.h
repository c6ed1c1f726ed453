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
#include "ops/types.h"

namespace flashover::ops {

enum class ScalarOp : uint8_t {
#define POINTWISE(name, arity, types, cost, traits, meaning) k_##name,
#include "ops/prims.def"
};

inline std::string_view name(ScalarOp op) {
  static constexpr std::string_view kNames[] = {
#define POINTWISE(name, arity, types, cost, traits, meaning) #name,
#include "ops/prims.def"
  };
  return kNames[static_cast<size_t>(op)];
}
inline int arity(ScalarOp op) {
  static constexpr int8_t kArity[] = {
#define POINTWISE(name, arity, types, cost, traits, meaning) arity,
#include "ops/prims.def"
  };
  return kArity[static_cast<size_t>(op)];
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
T float_unary(ScalarOp op, T a) {
  switch (op) {
    case ScalarOp::k_neg:
      return -a;
    case ScalarOp::k_abs:
      return std::fabs(a);
    case ScalarOp::k_sign:
      return a > 0 ? 1 : a < 0 ? -1 : 0;
    case ScalarOp::k_ceil:
      return std::ceil(a);
    case ScalarOp::k_floor:
      return std::floor(a);
    case ScalarOp::k_round:
      return std::nearbyint(a);
    case ScalarOp::k_trunc:
      return std::trunc(a);
    case ScalarOp::k_exp:
      return std::exp(a);
    case ScalarOp::k_exp2:
      return std::exp2(a);
    case ScalarOp::k_expm1:
      return std::expm1(a);
    case ScalarOp::k_log:
      return std::log(a);
    case ScalarOp::k_log2:
      return std::log2(a);
    case ScalarOp::k_log10:
      return std::log10(a);
    case ScalarOp::k_log1p:
      return std::log1p(a);
    case ScalarOp::k_sqrt:
      return std::sqrt(a);
    case ScalarOp::k_rsqrt:
      return 1 / std::sqrt(a);
    case ScalarOp::k_reciprocal:
      return 1 / a;
    case ScalarOp::k_sin:
      return std::sin(a);
    case ScalarOp::k_cos:
      return std::cos(a);
    case ScalarOp::k_tan:
      return std::tan(a);
    case ScalarOp::k_asin:
      return std::asin(a);
    case ScalarOp::k_acos:
      return std::acos(a);
    case ScalarOp::k_atan:
      return std::atan(a);
    case ScalarOp::k_sinh:
      return std::sinh(a);
    case ScalarOp::k_cosh:
      return std::cosh(a);
    case ScalarOp::k_tanh:
      return std::tanh(a);
    case ScalarOp::k_asinh:
      return std::asinh(a);
    case ScalarOp::k_acosh:
      return std::acosh(a);
    case ScalarOp::k_atanh:
      return std::atanh(a);
    case ScalarOp::k_erf:
      return std::erf(a);
    case ScalarOp::k_erfc:
      return std::erfc(a);
    case ScalarOp::k_erfinv:
      return static_cast<T>(erfinv(a));
    case ScalarOp::k_lgamma:
      return std::lgamma(a);
    case ScalarOp::k_digamma:
      return static_cast<T>(digamma(a));
    case ScalarOp::k_i0:
      return static_cast<T>(i0(a));
    case ScalarOp::k_sigmoid:
      return 1 / (1 + std::exp(-a));
    case ScalarOp::k_relu:
      return a < 0 ? 0 : a;
    default:
      FLASHOVER_CHECK(false) << "no operation on a float: " << name(op);
      return 0;
  }
}

template <typename T>
T float_binary(ScalarOp op, T a, T b) {
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  switch (op) {
    case ScalarOp::k_add:
      return a + b;
    case ScalarOp::k_sub:
      return a - b;
    case ScalarOp::k_mul:
      return a * b;
    case ScalarOp::k_div:
      return a / b;
    case ScalarOp::k_floordiv:
      return floor_divide(a, b);
    case ScalarOp::k_truncdiv:
      return std::trunc(a / b);
    case ScalarOp::k_fmod:
      return std::fmod(a, b);
    case ScalarOp::k_remainder:
      return python_mod(a, b);
    case ScalarOp::k_pow:
      return std::pow(a, b);
    case ScalarOp::k_atan2:
      return std::atan2(a, b);
    case ScalarOp::k_hypot:
      return std::hypot(a, b);
    case ScalarOp::k_copysign:
      return std::copysign(a, b);
    case ScalarOp::k_nextafter:
      return std::nextafter(a, b);
    case ScalarOp::k_minimum:
      return std::isnan(a) || std::isnan(b) ? kNan : std::min(a, b);
    case ScalarOp::k_maximum:
      return std::isnan(a) || std::isnan(b) ? kNan : std::max(a, b);
    case ScalarOp::k_fmin:
      return std::fmin(a, b);
    case ScalarOp::k_fmax:
      return std::fmax(a, b);
    default:
      FLASHOVER_CHECK(false) << "no operation on two floats: " << name(op);
      return 0;
  }
}

template <typename T>
T float_op(ScalarOp op, T a, T b, T c) {
  if (op == ScalarOp::k_fma) return a * b + c;
  return arity(op) == 1 ? float_unary(op, a) : float_binary(op, a, b);
}

// T: int64_t or uint64_t, here and below.
template <typename T>
T divide_op(ScalarOp op, T a, T b) {
  using U = uint64_t;
  FLASHOVER_CHECK(b != T(0)) << "integer division by zero";
  if (std::is_signed_v<T> && b == static_cast<T>(-1))  // INT64_MIN / -1
    return op == ScalarOp::k_fmod || op == ScalarOp::k_remainder ? T(0) : static_cast<T>(U(0) - static_cast<U>(a));
  T q = a / b, r = a % b;
  bool adjust = r != 0 && (r < T(0)) != (b < T(0));
  switch (op) {
    case ScalarOp::k_truncdiv:
      return q;
    case ScalarOp::k_floordiv:
      return adjust ? q - 1 : q;
    case ScalarOp::k_fmod:
      return r;
    case ScalarOp::k_remainder:
      return adjust ? r + b : r;
    default:
      FLASHOVER_CHECK(false) << "no integer operation " << name(op);
      return 0;
  }
}

template <typename T>
T int_op(ScalarOp op, T a, T b) {
  using U = uint64_t;
  switch (op) {
    case ScalarOp::k_neg:
      return static_cast<T>(U(0) - static_cast<U>(a));
    case ScalarOp::k_abs:
      return std::is_signed_v<T> && a < T(0) ? static_cast<T>(U(0) - static_cast<U>(a)) : a;
    case ScalarOp::k_sign:
      return a > T(0) ? 1 : a == T(0) ? 0 : static_cast<T>(-1);
    case ScalarOp::k_relu:
      return std::max(a, T(0));
    case ScalarOp::k_logical_not:
      return !a;
    case ScalarOp::k_bitwise_not:
      return ~a;
    case ScalarOp::k_add:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    case ScalarOp::k_sub:
      return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
    case ScalarOp::k_mul:
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    case ScalarOp::k_minimum:
    case ScalarOp::k_fmin:
      return std::min(a, b);
    case ScalarOp::k_maximum:
    case ScalarOp::k_fmax:
      return std::max(a, b);
    case ScalarOp::k_bitwise_and:
      return a & b;
    case ScalarOp::k_bitwise_or:
      return a | b;
    case ScalarOp::k_bitwise_xor:
      return a ^ b;
    case ScalarOp::k_shift_left:
      return static_cast<U>(b) > 63 ? T(0) : static_cast<T>(static_cast<U>(a) << b);
    case ScalarOp::k_shift_right:
      return static_cast<U>(b) > 63 ? (a < T(0) ? static_cast<T>(-1) : T(0)) : a >> b;
    case ScalarOp::k_pow: {
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
bool compare_op(ScalarOp op, T a, T b) {
  switch (op) {
    case ScalarOp::k_eq:
      return a == b;
    case ScalarOp::k_ne:
      return a != b;
    case ScalarOp::k_lt:
      return a < b;
    case ScalarOp::k_le:
      return a <= b;
    case ScalarOp::k_gt:
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
inline Scalar compute(ScalarOp op, DType operand, const Scalar& a, const Scalar& b = {}, const Scalar& c = {}) {
  if (op == ScalarOp::k_where) return a.i ? b : c;
  Scalar r;
  bool compares = op >= ScalarOp::k_eq && op <= ScalarOp::k_ge;
  if (detail::is_float(operand)) {
    if (op == ScalarOp::k_isnan) {
      r.i = std::isnan(a.f);
    } else if (op == ScalarOp::k_isinf) {
      r.i = std::isinf(a.f);
    } else if (op == ScalarOp::k_signbit) {
      r.i = std::signbit(a.f);
    } else if (compares) {
      r.i = detail::compare_op(op, a.f, b.f);
    } else if (operand == DType::kF32) {
      r.f = detail::float_op<float>(op, static_cast<float>(a.f), static_cast<float>(b.f), static_cast<float>(c.f));
    } else {
      r.f = detail::float_op<double>(op, a.f, b.f, c.f);
    }
  } else if (op == ScalarOp::k_signbit) {
    r.i = info(operand).is_signed && a.i < 0;
  } else if (operand == DType::kU64) {
    auto x = static_cast<uint64_t>(a.i), y = static_cast<uint64_t>(b.i);
    r.i = compares ? detail::compare_op(op, x, y) : static_cast<int64_t>(detail::int_op<uint64_t>(op, x, y));
  } else {
    if (operand == DType::kBool && op == ScalarOp::k_bitwise_not) op = ScalarOp::k_logical_not;
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
