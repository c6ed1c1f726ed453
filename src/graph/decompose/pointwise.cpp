// Pointwise aten operators out of pointwise prims.
#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/decompose/rules.h"
#include "graph/eager_rules.h"
#include "ops/names.h"

namespace flashover::graph::rules {
namespace {

// ---------------------------------------------------------------- one operand
template <ValueId (Builder::*F)(ValueId)>
bool float_unary(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  return done(b, (b.*F)(b.convert(in(n, 0), math(d))), d, outs);
}
// Rounding leaves integers alone.
template <ValueId (Builder::*F)(ValueId)>
bool rounding(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId x = in(n, 0);
  if (!is_floating(d)) return done(b, x, d, outs);
  return done(b, (b.*F)(b.convert(x, math(d))), d, outs);
}
// Any number, no rounding involved.
template <ValueId (Builder::*F)(ValueId)>
bool exact_unary(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  if (d == DType::kBool) return false;
  return done(b, (b.*F)(b.convert(in(n, 0), math(d))), d, outs);
}
bool sign(Builder& b, const Node& n, Outs& outs) {
  if (result(b, n).dtype == DType::kBool) return done(b, in(n, 0), DType::kBool, outs);
  return exact_unary<&Builder::sign>(b, n, outs);
}
bool abs(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  if (d == DType::kU8) return done(b, in(n, 0), d, outs);
  return exact_unary<&Builder::abs>(b, n, outs);
}
bool relu(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d));
  return done(b, is_floating(d) ? b.relu(x) : b.maximum(x, constant(b, x, 0)), d, outs);
}
bool frac(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d));
  return done(b, b.sub(x, b.trunc(x)), d, outs);
}
bool bitwise_not(Builder& b, const Node& n, Outs& outs) {
  return done(b, b.bitwise_not(in(n, 0)), result(b, n).dtype, outs);
}
bool logical_not(Builder& b, const Node& n, Outs& outs) {
  return done(b, b.logical_not(b.convert(in(n, 0), DType::kBool)), result(b, n).dtype, outs);
}
// Predicates on floats; integers give a constant.
ValueId all_of(Builder& b, const Node& n, bool v) {
  TensorType t = result(b, n);
  return b.full(t.sizes, v, DType::kBool, t.device);
}
template <ValueId (Builder::*F)(ValueId)>
bool float_predicate(Builder& b, const Node& n, Outs& outs) {
  ValueId x = in(n, 0);
  outs = {is_floating(b.dtype(x)) ? (b.*F)(b.convert(x, math(b.dtype(x)))) : all_of(b, n, false)};
  return true;
}
template <bool negative>
bool is_signed_inf(Builder& b, const Node& n, Outs& outs) {
  ValueId x = in(n, 0);
  if (!is_floating(b.dtype(x))) {
    outs = {all_of(b, n, false)};
    return true;
  }
  x = b.convert(x, math(b.dtype(x)));
  outs = {b.eq(x, constant(b, x, negative ? -kInf : kInf))};
  return true;
}
bool signbit(Builder& b, const Node& n, Outs& outs) {
  ValueId x = in(n, 0);
  DType d = b.dtype(x);
  if (is_floating(d))
    outs = {b.signbit(b.convert(x, math(d)))};
  else if (d == DType::kBool || d == DType::kU8)
    outs = {all_of(b, n, false)};
  else
    outs = {b.lt(x, constant(b, x, 0))};
  return true;
}
double largest(DType d) {
  switch (d) {
    case DType::kF16:
      return 65504.0;
    case DType::kBF16:
      return 3.3895313892515355e38;
    case DType::kF32:
      return static_cast<double>(std::numeric_limits<float>::max());
    default:
      return std::numeric_limits<double>::max();
  }
}
bool nan_to_num(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  if (!is_floating(d)) return done(b, in(n, 0), d, outs);
  for (size_t i = 1; i < 4; ++i)
    if (!scalar_fits(arg(n, i), d)) return false;
  ValueId x = b.convert(in(n, 0), math(d));
  ValueId nan = constant(b, x, number(arg(n, 1)).value_or(0.0));
  ValueId high = constant(b, x, number(arg(n, 2)).value_or(largest(d)));
  ValueId low = constant(b, x, number(arg(n, 3)).value_or(-largest(d)));
  ValueId y = b.where(b.eq(x, constant(b, x, kInf)), high, b.where(b.eq(x, constant(b, x, -kInf)), low, x));
  return done(b, b.where(b.isnan(x), nan, y), d, outs);
}
bool logit(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  auto eps = number(arg(n, 1));
  if (eps && !scalar_fits(arg(n, 1), d)) return false;
  ValueId x = b.convert(in(n, 0), math(d));
  if (eps) {
    ValueId lo = constant(b, x, *eps), hi = constant(b, x, 1 - *eps);
    x = b.where(b.lt(x, lo), lo, b.where(b.gt(x, hi), hi, x));
  }
  return done(b, b.log(b.div(x, b.sub(constant(b, x, 1), x))), d, outs);
}
bool sinc(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d));
  ValueId p = b.mul(x, constant(b, x, M_PI));
  return done(b, b.where(b.eq(x, constant(b, x, 0)), constant(b, x, 1), b.div(b.sin(p), p)), d, outs);
}

// ---------------------------------------------------------------- activations
bool leaky_relu(Builder& b, const Node& n, Outs& outs) {
  auto slope = number(arg(n, 1));
  if (!slope) return false;
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d));
  return done(b, b.where(b.gt(x, constant(b, x, 0)), x, b.mul(x, constant(b, x, *slope))), d, outs);
}
bool elu_with(Builder& b, const Node& n, double alpha, double scale, double input_scale, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d));
  ValueId scaled = input_scale == 1 ? x : b.mul(x, constant(b, x, input_scale));
  ValueId low = b.mul(b.expm1(scaled), constant(b, x, alpha * scale));
  ValueId high = scale == 1 ? x : b.mul(x, constant(b, x, scale));
  return done(b, b.where(b.lt(x, constant(b, x, 0)), low, high), d, outs);
}
bool elu(Builder& b, const Node& n, Outs& outs) {
  auto alpha = number(arg(n, 1)), scale = number(arg(n, 2)), input = number(arg(n, 3));
  return alpha && scale && input && elu_with(b, n, *alpha, *scale, *input, outs);
}
bool celu(Builder& b, const Node& n, Outs& outs) {
  auto alpha = number(arg(n, 1));
  return alpha && *alpha != 0 && elu_with(b, n, *alpha, 1, 1 / *alpha, outs);
}
bool selu(Builder& b, const Node& n, Outs& outs) {
  return elu_with(b, n, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1, outs);
}
ValueId clamped(Builder& b, ValueId x, double lo, double hi) {
  return b.minimum(b.maximum(x, constant(b, x, lo)), constant(b, x, hi));
}
bool hardtanh(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  auto lo = number(arg(n, 1)), hi = number(arg(n, 2));
  if (!lo || !hi) return false;
  if (!is_floating(d) && (!scalar_fits(arg(n, 1), d) || !scalar_fits(arg(n, 2), d))) return false;
  if (!is_floating(d) && (std::trunc(*lo) != *lo || std::trunc(*hi) != *hi)) return false;
  if (is_floating(d) && (!scalar_in(*lo, d) || !scalar_in(*hi, d))) return false;
  return done(b, clamped(b, b.convert(in(n, 0), math(d)), *lo, *hi), d, outs);
}
bool relu6(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  return done(b, clamped(b, b.convert(in(n, 0), math(d)), 0, 6), d, outs);
}
ValueId hard_gate(Builder& b, ValueId x) { return clamped(b, b.add(x, constant(b, x, 3)), 0, 6); }
bool hardsigmoid(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d));
  return done(b, b.div(hard_gate(b, x), constant(b, x, 6)), d, outs);
}
bool hardswish(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d));
  return done(b, b.div(b.mul(x, hard_gate(b, x)), constant(b, x, 6)), d, outs);
}
bool silu(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d));
  return done(b, b.mul(x, b.sigmoid(x)), d, outs);
}
bool mish(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d));
  return done(b, b.mul(x, b.tanh(b.log1p(b.exp(x)))), d, outs);
}
bool gelu(Builder& b, const Node& n, Outs& outs) {
  auto* approximate = std::get_if<std::string>(&arg(n, 1));
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d));
  ValueId half = constant(b, x, 0.5), unit = constant(b, x, 1);
  if (approximate && *approximate == "tanh") {
    ValueId cube = b.mul(b.mul(x, x), x);
    ValueId inner = b.mul(b.add(x, b.mul(cube, constant(b, x, 0.044715))), constant(b, x, M_SQRT2 * M_2_SQRTPI * 0.5));
    return done(b, b.mul(b.mul(x, half), b.add(b.tanh(inner), unit)), d, outs);
  }
  return done(b, b.mul(b.mul(x, half), b.add(b.erf(b.mul(x, constant(b, x, M_SQRT1_2))), unit)), d, outs);
}
bool softplus(Builder& b, const Node& n, Outs& outs) {
  auto beta = number(arg(n, 1)), threshold = number(arg(n, 2));
  if (!beta || !threshold) return false;
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d));
  ValueId scaled = *beta == 1 ? x : b.mul(x, constant(b, x, *beta));
  ValueId soft = b.log1p(b.exp(scaled));
  if (*beta != 1) soft = b.div(soft, constant(b, x, *beta));
  return done(b, b.where(b.gt(scaled, constant(b, x, *threshold)), x, soft), d, outs);
}
bool softshrink(Builder& b, const Node& n, Outs& outs) {
  auto lambda = number(arg(n, 1));
  DType d = result(b, n).dtype;
  if (!lambda || !(*lambda >= 0) || !std::isfinite(*lambda) || !scalar_in(*lambda, d)) return false;  // eager raises
  ValueId x = b.convert(in(n, 0), math(d));
  ValueId l = constant(b, x, *lambda);
  ValueId inside = b.bitwise_and(b.ge(x, constant(b, x, -*lambda)), b.le(x, l));
  ValueId outside = b.where(b.gt(x, l), b.sub(x, l), b.add(x, l));  // not a number stays so
  return done(b, b.where(inside, constant(b, x, 0), outside), d, outs);
}
bool hardshrink(Builder& b, const Node& n, Outs& outs) {
  auto lambda = number(arg(n, 1));
  DType d = result(b, n).dtype;
  if (!lambda || !scalar_in(*lambda, d)) return false;
  ValueId x = b.convert(in(n, 0), math(d));
  ValueId inside = b.bitwise_and(b.ge(x, constant(b, x, -*lambda)), b.le(x, constant(b, x, *lambda)));
  return done(b, b.where(inside, constant(b, x, 0), x), d, outs);
}
bool threshold(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  if (!scalar_fits(arg(n, 1), d) || !scalar_fits(arg(n, 2), d)) return false;
  ValueId x = b.convert(in(n, 0), math(d));
  return done(b, b.where(b.le(x, operand_via(b, n, 1, d, math(d))), operand(b, n, 2, math(d)), x), d, outs);
}
bool glu(Builder& b, const Node& n, Outs& outs) {
  auto dim = integer(arg(n, 1));
  if (!dim) return false;
  DType d = result(b, n).dtype;
  ValueId x = in(n, 0);
  sym::Expr size = b.size(x, *dim), half = sym::floordiv(size, 2);
  ValueId value = b.convert(b.slice(x, *dim, 0, half), math(d));
  ValueId gate = b.convert(b.slice(x, *dim, half, size), math(d));
  return done(b, b.mul(value, b.sigmoid(gate)), d, outs);
}
bool prelu(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d)), w = b.convert(in(n, 1), math(d));
  return done(b, b.where(b.gt(x, constant(b, x, 0)), x, b.mul(w, x)), d, outs);
}
bool log_sigmoid_forward(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 0), math(d));
  ValueId z = b.exp(b.neg(b.abs(x)));
  ValueId y = b.sub(b.minimum(x, constant(b, x, 0)), b.log1p(z));
  outs = {b.convert(y, d), b.convert(z, d)};
  return true;
}

// ---------------------------------------------------------------- two operands
// A Scalar that is known only when the program runs is a 0-d tensor here.
ValueId scalar(Builder& b, const Node& n, size_t i, DType d) {
  if (has(n, i)) return b.convert(in(n, i), d);
  return b.full({}, *scalar_in(arg(n, i), d), d, result(b, n).device);
}
bool operands_fit(Builder& b, const Node& n, std::initializer_list<size_t> at, DType d) {
  for (size_t i : at)
    if (!has(n, i) && !scalar_in(arg(n, i), d)) return false;
  return true;
}

bool is_bool(Builder& b, const Node& n, size_t i) {
  return has(n, i) ? type(b, n, i).dtype == DType::kBool : std::holds_alternative<bool>(arg(n, i));
}
template <int sign, size_t lhs, size_t rhs>
bool add_scaled(Builder& b, const Node& n, Outs& outs) {  // lhs + sign * alpha * rhs
  DType d = result(b, n).dtype, m = math(d);
  const Arg& alpha = arg(n, 2);
  auto a = number(alpha);
  if (!is_none(alpha) && !a && !(has(n, 2) && is_floating(d))) return false;
  const double scale = has(n, 2) ? std::numeric_limits<double>::quiet_NaN() : a.value_or(1);
  if (!operands_fit(b, n, {lhs, rhs}, m)) return false;
  // Eager converts the factor to the tensors' dtype, and refuses a bool for numbers.
  if (!has(n, 2) && !scalar_in(is_none(alpha) ? Arg(1.0) : alpha, d)) return false;
  if (std::holds_alternative<bool>(alpha) && d != DType::kBool) return false;
  if (sign < 0 && (is_bool(b, n, 0) || is_bool(b, n, 1))) return false;  // nor does it subtract bools
  if (d == DType::kBool) {
    if (sign < 0 || scale != 1) return false;
    return done(b, b.bitwise_or(operand(b, n, lhs, d), operand(b, n, rhs, d)), d, outs);
  }
  ValueId x = operand(b, n, lhs, m), y = operand(b, n, rhs, m);
  if (scale != 1) y = b.mul(y, scalar(b, n, 2, m));
  return done(b, sign > 0 ? b.add(x, y) : b.sub(x, y), d, outs);
}
template <ValueId (Builder::*F)(ValueId, ValueId), bool bools = false, size_t lhs = 0, size_t rhs = 1>
bool binary(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype, m = math(d);
  if ((d == DType::kBool && !bools) || !operands_fit(b, n, {lhs, rhs}, m)) return false;
  return done(b, (b.*F)(operand(b, n, lhs, m), operand(b, n, rhs, m)), d, outs);
}
// For kernels without an f32 inside: operands are rounded to the result's dtype first.
template <ValueId (Builder::*F)(ValueId, ValueId)>
bool rounded_binary(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype, m = math(d);
  if (d == DType::kBool || !operands_fit(b, n, {0, 1}, d)) return false;
  return done(b, (b.*F)(operand_via(b, n, 0, d, m), operand_via(b, n, 1, d, m)), d, outs);
}
bool mul(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  if (d == DType::kBool) {
    if (!operands_fit(b, n, {0, 1}, d)) return false;
    return done(b, b.bitwise_and(operand(b, n, 0, d), operand(b, n, 1, d)), d, outs);
  }
  return binary<&Builder::mul>(b, n, outs);
}
// Integer division traps on zero and on MIN / -1, where eager raises: only with a number that does neither.
bool safe_divisor(Builder& b, const Node& n, size_t i, DType d) {
  if (is_floating(d)) return true;
  if (const auto size = size_at(b, n, i)) return d == DType::kI64 && sym::follows(sym::Relation::kLess, 0, *size);
  auto v = integer(arg(n, i));
  return is_int(d) && v && *v != 0 && *v != -1 && scalar_in(arg(n, i), d);
}
template <ValueId (Builder::*F)(ValueId, ValueId)>
bool division(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  return safe_divisor(b, n, 1, d) && rounded_binary<F>(b, n, outs);
}
// Divisions that round to whole numbers take a divisor of one element as it is given, in the precision of their
// arithmetic: rounding 0.1 to 16 bits first would move whole quotients.
bool single_divisor(Builder& b, const Node& n) {
  return !has(n, 1) || std::ranges::all_of(b.type(in(n, 1)).sizes, [](sym::Expr e) { return sym::known_eq(e, 1); });
}
ValueId divisor(Builder& b, const Node& n, DType d) {
  return single_divisor(b, n) ? scalar(b, n, 1, math(d)) : operand_via(b, n, 1, d, math(d));
}
bool floor_division(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype, m = math(d);
  if (!safe_divisor(b, n, 1, d) || !operands_fit(b, n, {0, 1}, d)) return false;
  return done(b, b.floordiv(operand_via(b, n, 0, d, m), divisor(b, n, d)), d, outs);
}
bool div_mode(Builder& b, const Node& n, Outs& outs) {
  auto* mode = std::get_if<std::string>(&arg(n, 2));
  if (!mode) return is_none(arg(n, 2)) && binary<&Builder::div>(b, n, outs);
  if (*mode == "floor") return floor_division(b, n, outs);
  if (*mode != "trunc") return false;
  DType d = result(b, n).dtype, m = math(d);
  if (!is_floating(d)) return division<&Builder::truncdiv>(b, n, outs);
  if (!operands_fit(b, n, {0, 1}, d)) return false;
  ValueId quotient = b.div(operand_via(b, n, 0, d, m), divisor(b, n, d));
  // Eager rounds the quotient of 16-bit tensors before it truncates, but not the one by a number.
  if (!single_divisor(b, n)) quotient = b.convert(b.convert(quotient, d), m);
  return done(b, b.trunc(quotient), d, outs);
}
bool pow_scalar_exponent(Builder& b, const Node& n, Outs& outs) {
  if (has(n, 1)) return is_floating(result(b, n).dtype) && binary<&Builder::pow>(b, n, outs);
  DType d = result(b, n).dtype, m = math(d);
  auto e = number(arg(n, 1));
  if (!e || d == DType::kBool) return false;
  if (is_int(d) && (*e < 0 || *e > 4 || std::trunc(*e) != *e)) return false;
  TensorType t = result(b, n);
  if (*e == 0) {
    outs = {b.full(t.sizes, *scalar_in(1.0, d), d, t.device)};
    return true;
  }
  ValueId x = b.convert(in(n, 0), m);
  auto y = [&]() -> ValueId {
    if (*e == 1) return x;
    if (*e == 2) return b.mul(x, x);
    if (*e == 3) return b.mul(b.mul(x, x), x);
    if (*e == 4 && is_int(d)) {
      ValueId square = b.mul(x, x);
      return b.mul(square, square);
    }
    if (*e == 0.5) return b.sqrt(x);
    if (*e == -0.5) return b.rsqrt(x);
    if (*e == -1) return b.reciprocal(x);
    if (*e == -2) return b.reciprocal(b.mul(x, x));
    return b.pow(x, constant(b, x, *e));
  };
  return done(b, y(), d, outs);
}
bool pow(Builder& b, const Node& n, Outs& outs) {
  if (!is_floating(result(b, n).dtype)) return false;
  if (!has(n, 1)) return pow_scalar_exponent(b, n, outs);
  return binary<&Builder::pow>(b, n, outs);
}
bool xlogy(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype, m = math(d);
  if (!operands_fit(b, n, {0, 1}, m)) return false;
  ValueId x = operand(b, n, 0, m), y = operand(b, n, 1, m);
  ValueId zero = constant(b, x, 0);
  ValueId product = b.where(b.eq(x, zero), zero, b.mul(x, b.log(y)));
  return done(b, b.where(b.isnan(y), y, product), d, outs);
}
template <bool base_two>
bool logaddexp(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype, m = math(d);
  ValueId x = operand(b, n, 0, m), y = operand(b, n, 1, m);
  ValueId top = b.maximum(x, y), distance = b.neg(b.abs(b.sub(x, y)));
  ValueId tail = base_two ? b.mul(b.log1p(b.exp2(distance)), constant(b, x, M_LOG2E)) : b.log1p(b.exp(distance));
  ValueId same_inf = b.bitwise_and(b.isinf(x), b.eq(x, y));
  return done(b, b.where(same_inf, x, b.add(top, tail)), d, outs);
}
template <ValueId (Builder::*F)(ValueId, ValueId), ValueId (Builder::*OnBool)(ValueId, ValueId)>
bool elementwise_extremum(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype, m = math(d);
  if (!operands_fit(b, n, {0, 1}, d)) return false;
  ValueId x = operand(b, n, 0, m), y = operand(b, n, 1, m);
  return done(b, d == DType::kBool ? (b.*OnBool)(x, y) : (b.*F)(x, y), d, outs);
}
template <ValueId (Builder::*F)(ValueId, ValueId)>
bool bitwise(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  if (is_floating(d) || !operands_fit(b, n, {0, 1}, d)) return false;
  return done(b, (b.*F)(operand(b, n, 0, d), operand(b, n, 1, d)), d, outs);
}
// Shifts by the width and more are undefined in C; only numbers known to be smaller.
template <ValueId (Builder::*F)(ValueId, ValueId)>
bool shift(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  auto by = integer(arg(n, 1));
  if (!is_int(d) || !by || *by < 0 || *by >= info(d).bytes * 8 - 1) return false;
  return bitwise<F>(b, n, outs);
}
template <ValueId (Builder::*F)(ValueId, ValueId)>
bool compare(Builder& b, const Node& n, Outs& outs) {
  DType common = common_dtype(b, n, {0, 1});
  if (common == DType::kUndefined || !operands_fit(b, n, {0, 1}, common)) return false;
  DType m = common == DType::kBool ? DType::kU8 : math(common);
  ValueId y = (b.*F)(operand_via(b, n, 0, common, m), operand_via(b, n, 1, common, m));
  return done(b, y, result(b, n).dtype, outs);
}
template <ValueId (Builder::*F)(ValueId, ValueId)>
bool logical(Builder& b, const Node& n, Outs& outs) {
  if (!operands_fit(b, n, {0, 1}, DType::kBool)) return false;
  return done(b, (b.*F)(operand(b, n, 0, DType::kBool), operand(b, n, 1, DType::kBool)), result(b, n).dtype, outs);
}

// ---------------------------------------------------------------- bounds, selection, three operands
template <bool has_min, bool has_max>
bool clamp(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype, m = math(d);
  if (d == DType::kBool) return false;
  const size_t min_at = 1, max_at = has_min ? 2 : 1;
  bool lower = has_min && !is_none(arg(n, min_at)), upper = has_max && !is_none(arg(n, max_at));
  if ((lower && !operands_fit(b, n, {min_at}, d)) || (upper && !operands_fit(b, n, {max_at}, d))) return false;
  // A number for the one bound of aten.clamp that is NaN bounds nothing. (Of clamp_min and clamp_max, where both bounds
  // are given, and by other rules of eager's, it makes NaN of all.)
  const bool may_bound_nothing = has_min && has_max && lower != upper && !eager_rules.lone_nan_bounds;
  const auto nothing = [&](size_t at) {
    const auto v = number(arg(n, at));
    return v && std::isnan(*v);
  };
  if (may_bound_nothing && nothing(lower ? min_at : max_at)) lower = upper = false;
  ValueId x = operand(b, n, 0, m);
  const size_t only = lower ? min_at : max_at;
  const bool late = may_bound_nothing && n.op->name == op::clamp && has(n, only) && is_floating(type(b, n, only).dtype);
  if (late) {
    const ValueId bound = operand_via(b, n, only, d, m);
    const ValueId y = lower ? b.maximum(x, bound) : b.minimum(x, bound);
    return done(b, b.where(b.isnan(bound), x, y), d, outs);
  }
  if (lower) x = b.maximum(x, operand_via(b, n, min_at, d, m));
  if (upper) x = b.minimum(x, operand_via(b, n, max_at, d, m));
  return done(b, x, d, outs);
}
template <bool divide>
bool add_combined(Builder& b, const Node& n, Outs& outs) {  // addcmul, addcdiv
  DType d = result(b, n).dtype, m = math(d);
  const Arg& value = arg(n, 3);
  const bool given = has(n, 3);
  auto v = given ? std::nullopt : scalar_in(is_none(value) ? Arg(1.0) : value, m);
  if (d == DType::kBool || !(v || (given && is_floating(d))) || !operands_fit(b, n, {0, 1, 2}, m)) return false;
  ValueId x = operand(b, n, 0, m), y = operand(b, n, 1, m), z = operand(b, n, 2, m);
  if (given || number(*v) != 1.0) y = b.mul(y, given ? scalar(b, n, 3, m) : b.full({}, *v, m, result(b, n).device));
  return done(b, b.add(x, divide ? b.div(y, z) : b.mul(y, z)), d, outs);
}
bool lerp(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype, m = math(d);
  if (!operands_fit(b, n, {0, 1, 2}, m)) return false;
  ValueId x = operand(b, n, 0, m), y = operand(b, n, 1, m), w = operand(b, n, 2, m);
  ValueId distance = b.sub(y, x);
  auto near = [&] { return b.add(x, b.mul(w, distance)); };
  auto far = [&] { return b.sub(y, b.mul(distance, b.sub(constant(b, w, 1), w))); };
  if (auto v = number(arg(n, 2))) return done(b, std::fabs(*v) < 0.5 ? near() : far(), d, outs);
  return done(b, b.where(b.lt(b.abs(w), constant(b, w, 0.5)), near(), far()), d, outs);
}
bool where(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  if (!operands_fit(b, n, {1, 2}, d)) return false;
  ValueId c = b.convert(in(n, 0), DType::kBool);
  return done(b, b.where(c, operand(b, n, 1, d), operand(b, n, 2, d)), d, outs);
}
bool masked_fill(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  if (!operands_fit(b, n, {2}, d) || type(b, n, 1).dtype != DType::kBool) return false;
  return done(b, b.where(in(n, 1), operand(b, n, 2, d), in(n, 0)), d, outs);
}

void add_functions(DecompositionRows& r) {
#define FLOAT_UNARY(name) add<float_unary<&Builder::name>>(r, {"aten." #name ".default"});
  FLOAT_UNARY(exp)
  FLOAT_UNARY(exp2)
  FLOAT_UNARY(expm1)
  FLOAT_UNARY(log)
  FLOAT_UNARY(log2)
  FLOAT_UNARY(log10)
  FLOAT_UNARY(log1p)
  FLOAT_UNARY(sqrt)
  FLOAT_UNARY(rsqrt)
  FLOAT_UNARY(reciprocal)
  FLOAT_UNARY(sin)
  FLOAT_UNARY(cos)
  FLOAT_UNARY(tan)
  FLOAT_UNARY(asin)
  FLOAT_UNARY(acos)
  FLOAT_UNARY(atan)
  FLOAT_UNARY(sinh)
  FLOAT_UNARY(cosh)
  FLOAT_UNARY(tanh)
  FLOAT_UNARY(asinh)
  FLOAT_UNARY(acosh)
  FLOAT_UNARY(atanh)
  FLOAT_UNARY(erf)
  FLOAT_UNARY(erfc)
  FLOAT_UNARY(erfinv)
  FLOAT_UNARY(lgamma)
  FLOAT_UNARY(digamma)
  FLOAT_UNARY(i0)
  FLOAT_UNARY(sigmoid)
#undef FLOAT_UNARY
  add<rounding<&Builder::ceil>, Takes::kNumbers>(r, {op::ceil});
  add<rounding<&Builder::floor>, Takes::kNumbers>(r, {op::floor});
  add<rounding<&Builder::round>, Takes::kNumbers>(r, {op::round});
  add<rounding<&Builder::trunc>, Takes::kNumbers>(r, {op::trunc});
  add<exact_unary<&Builder::neg>>(r, {op::neg});
  add<sign>(r, {op::sign, op::sgn});
  add<abs>(r, {op::abs});
  add<relu, Takes::kNumbers>(r, {op::relu});
  add<frac, Takes::kFloats>(r, {op::frac});
  add<bitwise_not, Takes::kWhole>(r, {op::bitwise_not});
  add<logical_not>(r, {op::logical_not});
  add<float_predicate<&Builder::isnan>>(r, {op::isnan});
  add<float_predicate<&Builder::isinf>>(r, {op::isinf});
  add<is_signed_inf<true>>(r, {op::isneginf});
  add<is_signed_inf<false>>(r, {op::isposinf});
  add<signbit>(r, {op::signbit});
  add<nan_to_num>(r, {op::nan_to_num});
  add<logit>(r, {op::logit});
  add<sinc>(r, {op::sinc});
}

void add_activations(DecompositionRows& r) {
  add<leaky_relu, Takes::kFloats>(r, {op::leaky_relu});
  add<elu, Takes::kFloats>(r, {op::elu});
  add<celu, Takes::kFloats>(r, {op::celu});
  add<selu, Takes::kFloats>(r, {op::selu});
  add<hardtanh>(r, {op::hardtanh});
  add<relu6>(r, {op::relu6});
  add<hardsigmoid, Takes::kFloats>(r, {op::hardsigmoid});
  add<hardswish, Takes::kFloats>(r, {op::hardswish});
  add<silu, Takes::kFloats>(r, {op::silu});
  add<mish, Takes::kFloats>(r, {op::mish});
  add<gelu, Takes::kFloats>(r, {op::gelu});
  add<softplus, Takes::kFloats>(r, {op::softplus});
  add<softshrink, Takes::kFloats>(r, {op::softshrink});
  add<hardshrink, Takes::kFloats>(r, {op::hardshrink});
  add<threshold, Takes::kNumbers>(r, {op::threshold});
  add<glu, Takes::kFloats>(r, {op::glu});
  add<prelu, Takes::kFloats>(r, {op::_prelu_kernel});
  add<log_sigmoid_forward, Takes::kFloats>(r, {op::log_sigmoid_forward});
}

void add_operators_of_two(DecompositionRows& r) {
  add<add_scaled<1, 0, 1>>(r, {op::add_Tensor, op::add_Scalar});
  add<add_scaled<-1, 0, 1>>(r, {op::sub_Tensor, op::sub_Scalar});
  add<mul>(r, {op::mul_Tensor, op::mul_Scalar});
  add<binary<&Builder::div>>(r, {op::div_Tensor, op::div_Scalar});
  add<div_mode>(r, {op::div_Tensor_mode, op::div_Scalar_mode});
  add<floor_division>(r, {op::floor_divide, op::floor_divide_Scalar});
  add<division<&Builder::remainder>>(r, {op::remainder_Tensor, op::remainder_Scalar, op::remainder_Scalar_Tensor});
  add<division<&Builder::fmod>>(r, {op::fmod_Tensor, op::fmod_Scalar});
  add<pow_scalar_exponent>(r, {op::pow_Tensor_Scalar});
  add<pow>(r, {op::pow_Tensor_Tensor, op::pow_Scalar});
  add<rounded_binary<&Builder::atan2>>(r, {op::atan2});
  add<rounded_binary<&Builder::copysign>>(r, {op::copysign_Tensor, op::copysign_Scalar});
  add<rounded_binary<&Builder::hypot>>(r, {op::hypot});
  add<xlogy>(r, {op::xlogy_Tensor, op::xlogy_Scalar_Other, op::xlogy_Scalar_Self});
  add<logaddexp<false>>(r, {op::logaddexp});
  add<logaddexp<true>>(r, {op::logaddexp2});
  add<elementwise_extremum<&Builder::maximum, &Builder::bitwise_or>>(r, {op::maximum});
  add<elementwise_extremum<&Builder::minimum, &Builder::bitwise_and>>(r, {op::minimum});
  add<elementwise_extremum<&Builder::fmax, &Builder::bitwise_or>>(r, {op::fmax});
  add<elementwise_extremum<&Builder::fmin, &Builder::bitwise_and>>(r, {op::fmin});
  add<bitwise<&Builder::bitwise_and>>(r,
                                      {op::bitwise_and_Tensor, op::bitwise_and_Scalar, op::bitwise_and_Scalar_Tensor});
  add<bitwise<&Builder::bitwise_or>>(r, {op::bitwise_or_Tensor, op::bitwise_or_Scalar, op::bitwise_or_Scalar_Tensor});
  add<bitwise<&Builder::bitwise_xor>>(r,
                                      {op::bitwise_xor_Tensor, op::bitwise_xor_Scalar, op::bitwise_xor_Scalar_Tensor});
  add<shift<&Builder::shift_left>>(
      r, {op::bitwise_left_shift_Tensor, op::bitwise_left_shift_Tensor_Scalar, op::lshift_Scalar});
  add<shift<&Builder::shift_right>>(
      r, {op::bitwise_right_shift_Tensor, op::bitwise_right_shift_Tensor_Scalar, op::rshift_Scalar});
#define COMPARE(name) add<compare<&Builder::name>>(r, {"aten." #name ".Tensor", "aten." #name ".Scalar"});
  COMPARE(eq)
  COMPARE(ne)
  COMPARE(lt)
  COMPARE(le)
  COMPARE(gt)
  COMPARE(ge)
#undef COMPARE
  add<logical<&Builder::bitwise_and>>(r, {op::logical_and});
  add<logical<&Builder::bitwise_or>>(r, {op::logical_or});
  add<logical<&Builder::bitwise_xor>>(r, {op::logical_xor});
  // rsub(x, y) = y - alpha * x
  add<add_scaled<-1, 1, 0>>(r, {op::rsub_Tensor, op::rsub_Scalar});
}

void add_operators_of_three(DecompositionRows& r) {
  add<clamp<true, true>>(r, {op::clamp, op::clamp_Tensor});
  add<clamp<true, false>>(r, {op::clamp_min, op::clamp_min_Tensor});
  add<clamp<false, true>>(r, {op::clamp_max, op::clamp_max_Tensor});
  add<add_combined<false>>(r, {op::addcmul});
  add<add_combined<true>>(r, {op::addcdiv});
  add<lerp, Takes::kFloats>(r, {op::lerp_Scalar, op::lerp_Tensor});
  add<where>(r, {op::where_self, op::where_ScalarOther, op::where_ScalarSelf, op::where_Scalar});
  add<masked_fill>(r, {op::masked_fill_Scalar, op::masked_fill_Tensor});
}

}  // namespace

void add_pointwise(DecompositionRows& r) {
  add_functions(r);
  add_activations(r);
  add_operators_of_two(r);
  add_operators_of_three(r);
}

}  // namespace flashover::graph::rules
