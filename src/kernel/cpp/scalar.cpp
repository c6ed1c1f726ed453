// A table: for each scalar operation its text for floats, integers and bools, single and in vectors.
#include "kernel/cpp/scalar.h"

#include <cmath>
#include <iterator>

#include "base/check.h"
#include "base/decimal.h"
#include "kernel/text.h"

namespace flashover::kernel {
namespace {

using loops::Op;

// $a $b $c operands; @f the library's f of the class (v_f, d_f); #f the integer one (f_i, f_l); $1 a one; $n the
// dtype's bits, $s one more if unsigned; ~f a name as it is, qualified. Comparisons are marked by a leading '?': 64-bit
// classes turn their result into a mask. Empty: no such operation.
struct Row {
  Op op;
  const char *floating, *integer, *boolean;
  bool wraps = false;  // the integer result may leave its dtype
};
const Row kRows[] = {
    {Op::k_neg, "-$a", "-$a", "", true},
    {Op::k_abs, "@abs($a)", "($a < 0 ? -$a : $a)", "", true},
    {Op::k_sign, "@sign($a)", "#sign($a)", "$a"},
    {Op::k_ceil, "@ceil($a)", "", ""},
    {Op::k_floor, "@floor($a)", "", ""},
    {Op::k_round, "@round($a)", "", ""},
    {Op::k_trunc, "@trunc($a)", "", ""},
    {Op::k_exp, "@exp($a)", "", ""},
    {Op::k_exp2, "@exp2($a)", "", ""},
    {Op::k_expm1, "@expm1($a)", "", ""},
    {Op::k_log, "@log($a)", "", ""},
    {Op::k_log2, "@log2($a)", "", ""},
    {Op::k_log10, "@log10($a)", "", ""},
    {Op::k_log1p, "@log1p($a)", "", ""},
    {Op::k_sqrt, "@sqrt($a)", "", ""},
    {Op::k_rsqrt, "@rsqrt($a)", "", ""},
    {Op::k_reciprocal, "$1 / $a", "", ""},
    {Op::k_sin, "@sin($a)", "", ""},
    {Op::k_cos, "@cos($a)", "", ""},
    {Op::k_tan, "@tan($a)", "", ""},
    {Op::k_asin, "@asin($a)", "", ""},
    {Op::k_acos, "@acos($a)", "", ""},
    {Op::k_atan, "@atan($a)", "", ""},
    {Op::k_sinh, "@sinh($a)", "", ""},
    {Op::k_cosh, "@cosh($a)", "", ""},
    {Op::k_tanh, "@tanh($a)", "", ""},
    {Op::k_asinh, "@asinh($a)", "", ""},
    {Op::k_acosh, "@acosh($a)", "", ""},
    {Op::k_atanh, "@atanh($a)", "", ""},
    {Op::k_erf, "@erf($a)", "", ""},
    {Op::k_erfc, "@erfc($a)", "", ""},
    {Op::k_erfinv, "@erfinv($a)", "", ""},
    {Op::k_lgamma, "@lgamma($a)", "", ""},
    {Op::k_digamma, "@digamma($a)", "", ""},
    {Op::k_i0, "@i0($a)", "", ""},
    {Op::k_sigmoid, "@sigmoid($a)", "", ""},
    {Op::k_relu, "@relu($a)", "($a > 0 ? $a : $a - $a)", ""},
    {Op::k_logical_not, "", "", "~m_not($a)"},
    {Op::k_bitwise_not, "", "(-1 - $a)", "~m_not($a)", true},
    {Op::k_isnan, "?$a != $a", "", ""},
    {Op::k_isinf, "@isinf($a)", "", ""},
    {Op::k_signbit, "?@bits($a) < 0", "?$a < 0", ""},
    {Op::k_add, "$a + $b", "$a + $b", "$a | $b", true},
    {Op::k_sub, "$a - $b", "$a - $b", "", true},
    {Op::k_mul, "$a * $b", "$a * $b", "$a & $b", true},
    {Op::k_div, "$a / $b", "", ""},
    {Op::k_floordiv, "@floordiv($a, $b)", "#floordiv($a, $b)", "", true},
    {Op::k_truncdiv, "@trunc($a / $b)", "#truncdiv($a, $b)", "", true},
    {Op::k_fmod, "@fmod($a, $b)", "#fmod($a, $b)", ""},
    {Op::k_remainder, "@remainder($a, $b)", "#remainder($a, $b)", ""},
    {Op::k_pow, "@pow($a, $b)", "#pow($a, $b)", "", true},
    {Op::k_atan2, "@atan2($a, $b)", "", ""},
    {Op::k_hypot, "@hypot($a, $b)", "", ""},
    {Op::k_copysign, "@copysign($a, $b)", "", ""},
    {Op::k_nextafter, "@nextafter($a, $b)", "", ""},
    {Op::k_minimum, "@min($a, $b)", "($a < $b ? $a : $b)", "$a & $b"},
    {Op::k_maximum, "@max($a, $b)", "($a > $b ? $a : $b)", "$a | $b"},
    {Op::k_fmin, "@fmin($a, $b)", "($a < $b ? $a : $b)", ""},
    {Op::k_fmax, "@fmax($a, $b)", "($a > $b ? $a : $b)", ""},
    {Op::k_bitwise_and, "", "$a & $b", "$a & $b"},
    {Op::k_bitwise_or, "", "$a | $b", "$a | $b"},
    {Op::k_bitwise_xor, "", "$a ^ $b", "$a ^ $b"},
    {Op::k_shift_left, "", "#shl($a, $b, $n)", "", true},
    {Op::k_shift_right, "", "#shr($a, $b, $s)", ""},
    {Op::k_eq, "?$a == $b", "?$a == $b", "~m_not($a ^ $b)"},
    {Op::k_ne, "?$a != $b", "?$a != $b", "$a ^ $b"},
    {Op::k_lt, "?$a < $b", "?$a < $b", "~m_not($a) & $b"},
    {Op::k_le, "?$a <= $b", "?$a <= $b", "~m_not($a) | $b"},
    {Op::k_gt, "?$a > $b", "?$a > $b", "$a & ~m_not($b)"},
    {Op::k_ge, "?$a >= $b", "?$a >= $b", "$a | ~m_not($b)"},
    {Op::k_where, "$m ? $b : $c", "$m ? $b : $c", "($a & $b) | (~m_not($a) & $c)"},
    {Op::k_fma, "@fma($a, $b, $c)", "", ""},
};
constexpr size_t kScalarOps = static_cast<size_t>(Op::k_convert);
static_assert(std::size(kRows) == kScalarOps);

const Row& row(Op op) {
  const Row& r = kRows[static_cast<size_t>(op)];
  FLASHOVER_CHECK(r.op == op) << "rows stand in the order of ops/prims.def";
  return r;
}

bool wide(RegisterClass c) { return c == RegisterClass::kD || c == RegisterClass::kL; }

}  // namespace

RegisterClass class_of(DType d) {
  switch (d) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return RegisterClass::kF;
    case DType::kF64:
      return RegisterClass::kD;
    case DType::kBool:
      return RegisterClass::kB;
    case DType::kU8:
    case DType::kI8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
      return RegisterClass::kI;
    case DType::kI64:
    case DType::kU32:
      return RegisterClass::kL;
    default:
      throw Declined(std::string("kernel: no arithmetic on ") + info(d).name);
  }
}

const char* type_name(RegisterClass c, bool vector) {
  static const char* const names[][2] = {
      {"float", "VF"}, {"double", "VD"}, {"int", "VI"}, {"long", "VL"}, {"bool", "VM"}};
  return names[static_cast<size_t>(c)][vector];
}

std::string constant(RegisterClass c, double number, int64_t integer, bool vector, const std::string& ns) {
  std::string text;
  const char* splat = "";
  switch (c) {
    case RegisterClass::kF:
    case RegisterClass::kD: {
      const bool f = c == RegisterClass::kF;
      splat = f ? "splat" : "splat_d";
      if (f) number = static_cast<float>(number);
      if (std::isnan(number)) {
        text = f ? "__builtin_nanf(\"\")" : "__builtin_nan(\"\")";
      } else if (std::isinf(number)) {
        text = f ? "__builtin_inff()" : "__builtin_inf()";
      } else {
        text = as_float(decimal(std::fabs(number), f ? 9 : 17));
        if (f) text += "f";
      }
      if (std::signbit(number) && !std::isnan(number)) text = "(-" + text + ")";
      break;
    }
    case RegisterClass::kI:
    case RegisterClass::kL:
      splat = c == RegisterClass::kI ? "splat_i" : "splat_l";
      text = std::to_string(integer);
      if (integer == INT64_MIN)
        text = "(-9223372036854775807l - 1)";
      else if (c == RegisterClass::kI && integer == INT32_MIN)
        text = "(-2147483647 - 1)";
      else if (c == RegisterClass::kL)
        text += "l";
      if (integer < 0 && text[0] == '-') text = "(" + text + ")";
      break;
    case RegisterClass::kB:
      splat = "splat_m";
      text = integer ? "true" : "false";
      break;
  }
  return vector ? ns + splat + "(" + text + ")" : text;
}

std::string wrapped(DType d, const std::string& text, const std::string& ns) {
  switch (d) {
    case DType::kI8:
      return ns + "wrap_i8(" + text + ")";
    case DType::kU8:
      return ns + "wrap_u8(" + text + ")";
    case DType::kI16:
      return ns + "wrap_i16(" + text + ")";
    case DType::kU16:
      return ns + "wrap_u16(" + text + ")";
    case DType::kU32:
      return ns + "wrap_u32(" + text + ")";
    default:
      return text;
  }
}

std::string operation(Op op, DType operand, const std::string& a, const std::string& b, const std::string& c,
                      bool vector, const std::string& ns) {
  const RegisterClass cls = class_of(operand);
  const Row& r = row(op);
  const bool floats = cls == RegisterClass::kF || cls == RegisterClass::kD;
  std::string_view pattern = floats ? r.floating : cls == RegisterClass::kB ? r.boolean : r.integer;
  FLASHOVER_CHECK(!pattern.empty()) << loops::info(op).name << " does not exist for " << info(operand).name;
  std::string out;
  const bool compares = pattern[0] == '?';
  if (compares) pattern.remove_prefix(1);
  for (size_t i = 0; i < pattern.size(); ++i) {
    auto name = [&] {
      size_t end = i + 1;
      while (end < pattern.size() && (is_letter_or_digit(pattern[end]) || pattern[end] == '_')) ++end;
      std::string n(pattern.substr(i + 1, end - i - 1));
      i = end - 1;
      return n;
    };
    switch (pattern[i]) {
      case '$':
        switch (pattern[++i]) {
          case 'a':
            out += a;
            break;
          case 'b':
            out += b;
            break;
          case 'c':
            out += c;
            break;
          case 'm':
            out += vector && wide(cls) ? ns + "m_to_wide(" + a + ")" : a;
            break;
          case '1':
            out += constant(cls, 1, 1, vector, ns);
            break;
          case 's':
            out += std::to_string(info(operand).bytes * 8 + !info(operand).is_signed);
            break;  // unsigned: all bits go
          case 'n':
            out += std::to_string(info(operand).bytes * 8);
            break;
          default:
            break;
        }
        break;
      case '@': {
        std::string n = name();
        out += ns + (n == "bits" ? (cls == RegisterClass::kD ? "bits_d" : "bits")
                                 : (cls == RegisterClass::kD ? "d_" : "v_") + n);
        break;
      }
      case '#':
        out += ns + name() + (cls == RegisterClass::kL ? "_l" : "_i");
        break;
      case '~':
        out += ns + name();
        break;
      default:
        out += pattern[i];
    }
  }
  if (compares && vector && wide(cls)) return ns + "m_from_wide(" + out + ")";
  return r.wraps && !floats ? wrapped(operand, out, ns) : out;
}

std::string conversion(DType from, DType to, const std::string& a, bool vector, const std::string& ns) {
  const RegisterClass f = class_of(from), t = class_of(to);
  if (t == RegisterClass::kB) {
    if (f == RegisterClass::kB) return a;
    std::string test = a + " != " + constant(f, 0, 0, vector, ns);
    return vector && wide(f) ? ns + "m_from_wide(" + test + ")" : test;
  }
  if (f == RegisterClass::kB) {
    switch (t) {
      case RegisterClass::kF:
        return a + " ? " + constant(t, 1, 0, vector, ns) + " : " + constant(t, 0, 0, vector, ns);
      case RegisterClass::kI:
        return ns + "m_to_i(" + a + ")";
      case RegisterClass::kL:
        return vector ? ns + "m_to_wide(" + a + ") & 1" : a;
      default:
        return (vector ? ns + "m_to_wide(" + a + ")" : a) + " ? " + constant(t, 1, 0, vector, ns) + " : " +
               constant(t, 0, 0, vector, ns);
    }
  }
  static const char letters[] = {'f', 'd', 'i', 'l'};
  std::string text =
      f == t ? a : ns + letters[static_cast<size_t>(f)] + "_to_" + letters[static_cast<size_t>(t)] + "(" + a + ")";
  const bool cuts =
      is_floating(from) || info(to).bytes < info(from).bytes || info(to).is_signed != info(from).is_signed;
  return cuts && !is_floating(to) ? wrapped(to, text, ns) : text;
}

}  // namespace flashover::kernel
