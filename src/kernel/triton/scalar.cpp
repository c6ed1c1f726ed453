// A table: for each scalar operation its Triton expression, with bools and fast forms apart.
#include "kernel/triton/scalar.h"

#include <cmath>
#include <unordered_map>

#include "base/check.h"
#include "base/decimal.h"
#include "kernel/neutral.h"
#include "kernel/text.h"
#include "ops/floats.h"

namespace flashover::kernel::triton {

using loops::Op;
using loops::Reduce;

namespace {
struct Names {
  const char *type, *signature;
};
Names names(DType d) {
  switch (d) {
    case DType::kF32:
      return {"tl.float32", "fp32"};
    case DType::kF64:
      return {"tl.float64", "fp64"};
    case DType::kF16:
      return {"tl.float16", "fp16"};
    case DType::kBF16:
      return {"tl.bfloat16", "bf16"};
    case DType::kBool:
      return {"tl.int1", "i1"};
    case DType::kU8:
      return {"tl.uint8", "u8"};
    case DType::kI8:
      return {"tl.int8", "i8"};
    case DType::kI16:
      return {"tl.int16", "i16"};
    case DType::kI32:
      return {"tl.int32", "i32"};
    case DType::kI64:
      return {"tl.int64", "i64"};
    case DType::kF8E4M3:
    case DType::kF8E5M2:  // in memory, as bits
      return {"tl.uint8", "u8"};
    default:
      throw Declined(std::string("triton: no arithmetic on ") + info(d).name);
  }
}

// $0 $1 $2 are operands, in parentheses where they need them. Second column: integers and bool, third: f64, where they
// differ.
struct Row {
  const char* floats;
  const char* others = nullptr;
  const char* doubles = nullptr;
};
const std::unordered_map<Op, Row>& table() {
  static const auto* const rows = new std::unordered_map<Op, Row>{
      {Op::k_neg, {"$0 * -1.0", "-$0"}},  // Triton's minus is a difference from zero, which is no negative zero
      {Op::k_abs, {"tl.abs($0)"}},
      {Op::k_sign, {"lib.sign($0)"}},
      {Op::k_ceil, {"lib.ceil($0)"}},
      {Op::k_floor, {"lib.floor($0)"}},
      {Op::k_round, {"lib.round($0)"}},
      {Op::k_trunc, {"lib.trunc($0)"}},
      {Op::k_exp, {"tl.exp($0)"}},
      {Op::k_exp2, {"lib.exp2($0)"}},
      {Op::k_expm1, {"lib.expm1($0)"}},
      {Op::k_log, {"lib.log($0)"}},
      {Op::k_log2, {"lib.log2($0)"}},
      {Op::k_log10, {"lib.log10($0)"}},
      {Op::k_log1p, {"lib.log1p($0)"}},
      {Op::k_sqrt, {"lib.sqrt($0)"}},
      {Op::k_rsqrt, {"lib.rsqrt($0)"}},
      {Op::k_reciprocal, {"tl.div_rn(1.0, $0)", nullptr, "1.0 / $0"}},
      {Op::k_sin, {"tl.sin($0)"}},
      {Op::k_cos, {"tl.cos($0)"}},
      {Op::k_tan, {"lib.tan($0)"}},
      {Op::k_asin, {"lib.asin($0)"}},
      {Op::k_acos, {"lib.acos($0)"}},
      {Op::k_atan, {"lib.atan($0)"}},
      {Op::k_sinh, {"lib.sinh($0)"}},
      {Op::k_cosh, {"lib.cosh($0)"}},
      {Op::k_tanh, {"lib.tanh($0)"}},
      {Op::k_asinh, {"lib.asinh($0)"}},
      {Op::k_acosh, {"lib.acosh($0)"}},
      {Op::k_atanh, {"lib.atanh($0)"}},
      {Op::k_erf, {"lib.erf($0)"}},
      {Op::k_erfc, {"lib.erfc($0)"}},
      {Op::k_erfinv, {"lib.erfinv($0)"}},
      {Op::k_lgamma, {"lib.lgamma($0)"}},
      {Op::k_digamma, {"lib.digamma($0)"}},
      {Op::k_i0, {"lib.cyl_bessel_i0($0)"}},
      {Op::k_sigmoid, {"lib.sigmoid($0)"}},
      {Op::k_relu, {"tl.where($0 < 0, 0, $0)"}},
      {Op::k_logical_not, {"$0 == 0"}},
      {Op::k_bitwise_not, {"~$0"}},
      {Op::k_isnan, {"$0 != $0"}},
      {Op::k_isinf, {"tl.abs($0) == float(\"inf\")"}},
      {Op::k_signbit, {"lib.signbit($0)", "$0 < 0"}},
      {Op::k_add, {"$0 + $1"}},
      {Op::k_sub, {"$0 - $1"}},
      {Op::k_mul, {"$0 * $1"}},
      {Op::k_div, {"tl.div_rn($0, $1)", nullptr, "$0 / $1"}},
      {Op::k_floordiv, {"lib.floor_divide($0, $1)", "lib.floor_div($0, $1)"}},
      {Op::k_truncdiv, {"lib.trunc(tl.div_rn($0, $1))", "$0 // $1", "lib.trunc($0 / $1)"}},
      {Op::k_fmod, {"lib.fmod($0, $1)", "$0 % $1"}},
      {Op::k_remainder, {"lib.remainder($0, $1)", "lib.floor_mod($0, $1)"}},
      {Op::k_pow, {"lib.pow($0, $1)", "lib.int_pow($0, $1)"}},
      {Op::k_atan2, {"lib.atan2($0, $1)"}},
      {Op::k_hypot, {"lib.hypot($0, $1)"}},
      {Op::k_copysign, {"lib.copysign($0, $1)"}},
      {Op::k_nextafter, {"lib.nextafter($0, $1)"}},
      {Op::k_minimum, {"lib.minimum($0, $1)", "tl.minimum($0, $1)"}},
      {Op::k_maximum, {"lib.maximum($0, $1)", "tl.maximum($0, $1)"}},
      {Op::k_fmin, {"lib.fmin($0, $1)", "tl.minimum($0, $1)"}},
      {Op::k_fmax, {"lib.fmax($0, $1)", "tl.maximum($0, $1)"}},
      {Op::k_bitwise_and, {"$0 & $1"}},
      {Op::k_bitwise_or, {"$0 | $1"}},
      {Op::k_bitwise_xor, {"$0 ^ $1"}},
      {Op::k_shift_left, {"lib.shift_left($0, $1)"}},
      {Op::k_shift_right, {"lib.shift_right($0, $1)"}},
      {Op::k_eq, {"$0 == $1"}},
      {Op::k_ne, {"$0 != $1"}},
      {Op::k_lt, {"$0 < $1"}},
      {Op::k_le, {"$0 <= $1"}},
      {Op::k_gt, {"$0 > $1"}},
      {Op::k_ge, {"$0 >= $1"}},
      {Op::k_where, {"tl.where($0, $1, $2)"}},
      {Op::k_fma, {"tl.fma($0, $1, $2)"}},
  };
  return *rows;
}
// bool: one bit that Triton takes for a signed number.
const std::unordered_map<Op, const char*>& bool_table() {
  static const auto* const rows = new std::unordered_map<Op, const char*>{
      {Op::k_sign, "$0"},           {Op::k_bitwise_not, "$0 == 0"}, {Op::k_add, "$0 | $1"},
      {Op::k_mul, "$0 & $1"},       {Op::k_minimum, "$0 & $1"},     {Op::k_maximum, "$0 | $1"},
      {Op::k_lt, "($0 == 0) & $1"}, {Op::k_le, "($0 == 0) | $1"},   {Op::k_gt, "$0 & ($1 == 0)"},
      {Op::k_ge, "$0 | ($1 == 0)"},
  };
  return *rows;
}
const std::unordered_map<Op, const char*>& fast_table() {
  static const auto* const rows = new std::unordered_map<Op, const char*>{
      {Op::k_div, "$0 / $1"},
      {Op::k_reciprocal, "1.0 / $0"},
      {Op::k_sigmoid, "tl.sigmoid($0)"},
      {Op::k_erf, "lib.fast_erf($0)"},
      {Op::k_log, "lib.fast_log($0)"},
      {Op::k_sqrt, "lib.fast_sqrt($0)"},
      {Op::k_tanh, "lib.fast_tanh($0)"},
  };
  return *rows;
}

std::string fill(const char* pattern, std::span<const std::string> args) {
  std::string out;
  for (const char* c = pattern; *c; ++c) {
    if (*c == '$') {
      out += args[static_cast<size_t>(*++c - '0')];
    } else {
      out += *c;
    }
  }
  return out;
}
}  // namespace

const char* type_name(DType d) { return names(d).type; }
const char* signature_name(DType d) { return names(d).signature; }

std::string scalar_tensor(const std::string& text, DType d) {
  return "tl.full((), " + text + ", " + type_name(d) + ")";
}

std::string constant(DType d, double number, int64_t integer) {
  type_name(d);  // declines
  if (d == DType::kBool) return integer ? "True" : "False";
  if (is_integral(d)) {
    if (integer == INT64_MIN) return scalar_tensor("-0x8000000000000000", DType::kI64);
    return std::to_string(integer);
  }
  if (std::isnan(number)) return d == DType::kF32 ? "float(\"nan\")" : scalar_tensor("float(\"nan\")", d);
  std::string text;
  if (std::isinf(number)) {
    text = "float(\"inf\")";
    if (number < 0) text = "float(\"-inf\")";
  } else {
    text = decimal(number, 9);
    if (d == DType::kF64 || parse_number<double>(text) != number) text = decimal(number, 17);
    text = as_float(text);
    // Triton drops the sign of a zero that is written down.
    if (std::signbit(number) && number == 0) return scalar_tensor("0.0", d) + " * -1.0";
  }
  // Triton takes Python floats for f32 only where they are normal numbers of that type.
  const bool tiny = number != 0 && std::abs(number) < 1.2e-38;
  return d == DType::kF64 || tiny ? scalar_tensor(text, d) : text;
}

std::string scalar(Op op, DType operand, std::span<const std::string> args, bool fast) {
  if (operand == DType::kBool)
    if (auto it = bool_table().find(op); it != bool_table().end()) return fill(it->second, args);
  if (fast && operand == DType::kF32)
    if (auto it = fast_table().find(op); it != fast_table().end()) return fill(it->second, args);
  auto it = table().find(op);
  if (it == table().end()) throw Declined(std::string("triton: no ") + loops::info(op).name);
  if (operand == DType::kF64 && it->second.doubles) return fill(it->second.doubles, args);
  if (!is_floating(operand) && it->second.others) return fill(it->second.others, args);
  return fill(it->second.floats, args);
}

std::string convert(DType from, DType to, const std::string& value) {
  if (to == DType::kBool) return "(" + value + " != 0)";
  // A float that does not fit wraps in eager, by way of a wider integer.
  if (is_floating(from) && is_integral(to) && info(to).bytes < 4)
    return value + ".to(tl.int32).to(" + type_name(to) + ")";
  return value + ".to(" + std::string(type_name(to)) + ")";
}

std::string from_memory(DType from, const std::string& value) {
  if (from == DType::kF8E4M3) return "lib.from_e4m3(" + value + ")";
  if (from == DType::kF8E5M2) return "lib.from_e5m2(" + value + ")";
  return value + ".to(tl.float32)";
}
std::string to_memory(DType to, const std::string& value) {
  if (to == DType::kF8E4M3) return "lib.to_e4m3(" + value + ")";
  if (to == DType::kF8E5M2) return "lib.to_e5m2(" + value + ")";
  return value + ".to(" + type_name(to) + ")";
}

std::string identity(Reduce kind, DType d) {
  const Neutral n = neutral(kind, d);
  return constant(d, n.number, n.integer);
}

const char* combine(Reduce kind, DType d) {
  const bool f = is_floating(d);
  switch (kind) {
    case Reduce::kSum:
      return "lib.add";
    case Reduce::kProd:
      return "lib.mul";
    case Reduce::kMax:
      return f ? "lib.maximum" : "lib.int_maximum";
    case Reduce::kMin:
      return f ? "lib.minimum" : "lib.int_minimum";
    case Reduce::kAny:
      return "lib.any_";
    case Reduce::kAll:
      return "lib.all_";
    case Reduce::kArgMax:
      return f ? "lib.argmax" : "lib.int_argmax";
    default:
      return f ? "lib.argmin" : "lib.int_argmin";
  }
}

}  // namespace flashover::kernel::triton
