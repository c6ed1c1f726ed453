// The plain reference: no vectors, no threads, one scalar at a time in the order the kernel is written down.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "base/check.h"
#include "loops/half.h"
#include "loops/loops.h"
#include "loops/philox.h"

namespace flashover::loops {
namespace {

// Floats live in f (f32 values already rounded to float), integers and bool in i (u64 as its bits).
struct Scalar {
  double f = 0;
  int64_t i = 0;
};

double erfinv(double y) {
  if (y <= -1 || y >= 1) return y == 1 ? INFINITY : y == -1 ? -INFINITY : NAN;
  double w = -std::log((1 - y) * (1 + y)), a = 0.147, t = 2 / (M_PI * a) - w / 2;
  double x = std::copysign(std::sqrt(std::sqrt(t * t + w / a) - t), y);
  for (int k = 0; k < 4; ++k) x -= (std::erf(x) - y) / (2 / std::sqrt(M_PI) * std::exp(-x * x));
  return x;
}
double digamma(double x) {
  if (x == 0) return std::copysign(INFINITY, -x);
  if (x < 0) return x == std::floor(x) ? NAN : digamma(1 - x) - M_PI / std::tan(M_PI * x);
  double shift = 0;
  for (; x < 10; x += 1) shift -= 1 / x;
  double z = 1 / (x * x);
  return shift + std::log(x) - 0.5 / x - z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z / 132))));
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
T float_op(Op op, T a, T b, T c) {
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  switch (op) {
    case Op::k_neg:
      return -a;
    case Op::k_abs:
      return std::fabs(a);
    case Op::k_sign:
      return a > 0 ? 1 : a < 0 ? -1 : 0;
    case Op::k_ceil:
      return std::ceil(a);
    case Op::k_floor:
      return std::floor(a);
    case Op::k_round:
      return std::nearbyint(a);
    case Op::k_trunc:
      return std::trunc(a);
    case Op::k_exp:
      return std::exp(a);
    case Op::k_exp2:
      return std::exp2(a);
    case Op::k_expm1:
      return std::expm1(a);
    case Op::k_log:
      return std::log(a);
    case Op::k_log2:
      return std::log2(a);
    case Op::k_log10:
      return std::log10(a);
    case Op::k_log1p:
      return std::log1p(a);
    case Op::k_sqrt:
      return std::sqrt(a);
    case Op::k_rsqrt:
      return 1 / std::sqrt(a);
    case Op::k_reciprocal:
      return 1 / a;
    case Op::k_sin:
      return std::sin(a);
    case Op::k_cos:
      return std::cos(a);
    case Op::k_tan:
      return std::tan(a);
    case Op::k_asin:
      return std::asin(a);
    case Op::k_acos:
      return std::acos(a);
    case Op::k_atan:
      return std::atan(a);
    case Op::k_sinh:
      return std::sinh(a);
    case Op::k_cosh:
      return std::cosh(a);
    case Op::k_tanh:
      return std::tanh(a);
    case Op::k_asinh:
      return std::asinh(a);
    case Op::k_acosh:
      return std::acosh(a);
    case Op::k_atanh:
      return std::atanh(a);
    case Op::k_erf:
      return std::erf(a);
    case Op::k_erfc:
      return std::erfc(a);
    case Op::k_erfinv:
      return static_cast<T>(erfinv(a));
    case Op::k_lgamma:
      return std::lgamma(a);
    case Op::k_digamma:
      return static_cast<T>(digamma(a));
    case Op::k_sigmoid:
      return 1 / (1 + std::exp(-a));
    case Op::k_relu:
      return a < 0 ? 0 : a;
    case Op::k_add:
      return a + b;
    case Op::k_sub:
      return a - b;
    case Op::k_mul:
      return a * b;
    case Op::k_div:
      return a / b;
    case Op::k_floordiv:
      return floor_divide(a, b);
    case Op::k_truncdiv:
      return std::trunc(a / b);
    case Op::k_fmod:
      return std::fmod(a, b);
    case Op::k_remainder:
      return python_mod(a, b);
    case Op::k_pow:
      return std::pow(a, b);
    case Op::k_atan2:
      return std::atan2(a, b);
    case Op::k_hypot:
      return std::hypot(a, b);
    case Op::k_copysign:
      return std::copysign(a, b);
    case Op::k_nextafter:
      return std::nextafter(a, b);
    case Op::k_minimum:
      return std::isnan(a) || std::isnan(b) ? kNan : std::min(a, b);
    case Op::k_maximum:
      return std::isnan(a) || std::isnan(b) ? kNan : std::max(a, b);
    case Op::k_fmin:
      return std::fmin(a, b);
    case Op::k_fmax:
      return std::fmax(a, b);
    case Op::k_fma:
      return a * b + c;
    default:
      FLASHOVER_CHECK(false) << "no float operation " << info(op).name;
      return 0;
  }
}

template <typename T>
T int_op(Op op, T a, T b) {  // T: int64_t or uint64_t
  using U = uint64_t;
  switch (op) {
    case Op::k_neg:
      return static_cast<T>(U(0) - static_cast<U>(a));
    case Op::k_abs:
      return std::is_signed_v<T> && a < T(0) ? static_cast<T>(U(0) - static_cast<U>(a)) : a;
    case Op::k_sign:
      return a > T(0) ? 1 : a == T(0) ? 0 : static_cast<T>(-1);
    case Op::k_relu:
      return std::max(a, T(0));
    case Op::k_logical_not:
      return !a;
    case Op::k_bitwise_not:
      return ~a;
    case Op::k_add:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    case Op::k_sub:
      return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
    case Op::k_mul:
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    case Op::k_minimum:
    case Op::k_fmin:
      return std::min(a, b);
    case Op::k_maximum:
    case Op::k_fmax:
      return std::max(a, b);
    case Op::k_bitwise_and:
      return a & b;
    case Op::k_bitwise_or:
      return a | b;
    case Op::k_bitwise_xor:
      return a ^ b;
    case Op::k_shift_left:
      return static_cast<U>(b) > 63 ? T(0) : static_cast<T>(static_cast<U>(a) << b);
    case Op::k_shift_right:
      return static_cast<U>(b) > 63 ? (a < T(0) ? static_cast<T>(-1) : T(0)) : a >> b;
    case Op::k_pow: {
      if (std::is_signed_v<T> && b < T(0)) return a == T(1) ? 1 : a == static_cast<T>(-1) ? (b % 2 ? a : T(1)) : T(0);
      U r = 1, x = static_cast<U>(a);
      for (U n = static_cast<U>(b); n; n >>= 1, x *= x)
        if (n & 1) r *= x;
      return static_cast<T>(r);
    }
    default:
      break;
  }
  FLASHOVER_CHECK(b != T(0)) << "integer division by zero";
  if (std::is_signed_v<T> && b == static_cast<T>(-1))  // INT64_MIN / -1
    return op == Op::k_fmod || op == Op::k_remainder ? T(0) : static_cast<T>(U(0) - static_cast<U>(a));
  T q = a / b, r = a % b;
  bool adjust = r != 0 && (r < T(0)) != (b < T(0));
  switch (op) {
    case Op::k_truncdiv:
      return q;
    case Op::k_floordiv:
      return adjust ? q - 1 : q;
    case Op::k_fmod:
      return r;
    case Op::k_remainder:
      return adjust ? r + b : r;
    default:
      FLASHOVER_CHECK(false) << "no integer operation " << info(op).name;
      return 0;
  }
}

template <typename T>
bool compare_op(Op op, T a, T b) {
  switch (op) {
    case Op::k_eq:
      return a == b;
    case Op::k_ne:
      return a != b;
    case Op::k_lt:
      return a < b;
    case Op::k_le:
      return a <= b;
    case Op::k_gt:
      return a > b;
    default:
      return a >= b;
  }
}

int64_t wrap_int(DType d, int64_t v) {
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
bool is_float(DType d) { return d == DType::kF32 || d == DType::kF64; }

Scalar scalar_op(Op op, DType operand, const Scalar& a, const Scalar& b, const Scalar& c) {
  Scalar r;
  bool compares = op >= Op::k_eq && op <= Op::k_ge;
  if (is_float(operand)) {
    if (op == Op::k_isnan) {
      r.i = std::isnan(a.f);
    } else if (op == Op::k_isinf) {
      r.i = std::isinf(a.f);
    } else if (op == Op::k_signbit) {
      r.i = std::signbit(a.f);
    } else if (compares) {
      r.i = compare_op(op, a.f, b.f);
    } else if (operand == DType::kF32) {
      r.f = float_op<float>(op, static_cast<float>(a.f), static_cast<float>(b.f), static_cast<float>(c.f));
    } else {
      r.f = float_op<double>(op, a.f, b.f, c.f);
    }
  } else if (op == Op::k_signbit) {
    r.i = info(operand).is_signed && a.i < 0;
  } else if (operand == DType::kU64) {
    auto x = static_cast<uint64_t>(a.i), y = static_cast<uint64_t>(b.i);
    r.i = compares ? compare_op(op, x, y) : static_cast<int64_t>(int_op<uint64_t>(op, x, y));
  } else {
    if (operand == DType::kBool && op == Op::k_bitwise_not) op = Op::k_logical_not;
    r.i = compares ? compare_op(op, a.i, b.i) : wrap_int(operand, int_op<int64_t>(op, a.i, b.i));
  }
  return r;
}

Scalar convert(DType from, DType to, Scalar v) {
  Scalar r;
  if (is_float(from)) {
    if (is_float(to)) {
      r.f = to == DType::kF32 ? static_cast<float>(v.f) : v.f;
    } else if (to == DType::kBool) {
      r.i = v.f != 0;
    } else if (to == DType::kU64 && v.f >= 9.2e18) {
      r.i = static_cast<int64_t>(static_cast<uint64_t>(v.f));
    } else {  // out of range is undefined in eager too; saturate so that the reference has no undefined behaviour
      r.i = wrap_int(to, std::isnan(v.f)  ? INT64_MIN
                         : v.f >= 9.2e18  ? INT64_MAX
                         : v.f <= -9.2e18 ? INT64_MIN
                                          : static_cast<int64_t>(v.f));
    }
  } else if (is_float(to)) {
    r.f = from == DType::kU64 ? static_cast<double>(static_cast<uint64_t>(v.i)) : static_cast<double>(v.i);
    if (to == DType::kF32)
      r.f = from == DType::kU64 ? static_cast<float>(static_cast<uint64_t>(v.i)) : static_cast<float>(v.i);
  } else {
    r.i = wrap_int(to, v.i);
  }
  return r;
}

template <typename T>
T read_as(const void* p, int64_t i) {
  T v;
  std::memcpy(&v, static_cast<const char*>(p) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}
template <typename T>
void write_as(void* p, int64_t i, T v) {
  std::memcpy(static_cast<char*>(p) + i * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
}
Scalar load(DType d, const void* p, int64_t i) {
  switch (d) {
    case DType::kF32:
      return {read_as<float>(p, i), 0};
    case DType::kF64:
      return {read_as<double>(p, i), 0};
    case DType::kBF16:
      return {bf16_to_float(read_as<uint16_t>(p, i)), 0};
    case DType::kF16:
      return {f16_to_float(read_as<uint16_t>(p, i)), 0};
    case DType::kBool:
    case DType::kU8:
      return {0, read_as<uint8_t>(p, i)};
    case DType::kI8:
      return {0, read_as<int8_t>(p, i)};
    case DType::kI16:
      return {0, read_as<int16_t>(p, i)};
    case DType::kU16:
      return {0, read_as<uint16_t>(p, i)};
    case DType::kI32:
      return {0, read_as<int32_t>(p, i)};
    case DType::kU32:
      return {0, read_as<uint32_t>(p, i)};
    case DType::kI64:
    case DType::kU64:
      return {0, read_as<int64_t>(p, i)};
    default:
      FLASHOVER_CHECK(false) << "cannot load " << info(d).name;
      return {};
  }
}
void store(DType d, void* p, int64_t i, const Scalar& v) {
  switch (d) {
    case DType::kF32:
      return write_as(p, i, static_cast<float>(v.f));
    case DType::kF64:
      return write_as(p, i, v.f);
    case DType::kBF16:
      return write_as(p, i, float_to_bf16(static_cast<float>(v.f)));
    case DType::kF16:
      return write_as(p, i, float_to_f16(static_cast<float>(v.f)));
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
      return write_as(p, i, static_cast<uint8_t>(v.i));
    case DType::kI16:
    case DType::kU16:
      return write_as(p, i, static_cast<uint16_t>(v.i));
    case DType::kI32:
    case DType::kU32:
      return write_as(p, i, static_cast<uint32_t>(v.i));
    case DType::kI64:
    case DType::kU64:
      return write_as(p, i, v.i);
    default:
      FLASHOVER_CHECK(false) << "cannot store " << info(d).name;
  }
}

struct AccState {
  Scalar value;
  int64_t index = 0;
  bool started = false;
};
AccState identity_of(const Accumulator& a) {
  AccState s;
  switch (a.kind) {
    case Reduce::kSum:
    case Reduce::kAny:
      break;
    case Reduce::kProd:
    case Reduce::kAll:
      s.value = {1, 1};
      break;
    case Reduce::kMax:
    case Reduce::kArgMax:
      s.value.f = -std::numeric_limits<double>::infinity();
      s.value.i =
          a.dtype == DType::kU64 || !info(a.dtype).is_signed ? 0 : -(int64_t{1} << (info(a.dtype).bytes * 8 - 2)) * 2;
      break;
    case Reduce::kMin:
    case Reduce::kArgMin:
      s.value.f = std::numeric_limits<double>::infinity();
      s.value.i = a.dtype == DType::kU64    ? -1
                  : a.dtype == DType::kBool ? 1
                  : info(a.dtype).is_signed ? ((int64_t{1} << (info(a.dtype).bytes * 8 - 2)) - 1) * 2 + 1
                                            : (int64_t{1} << info(a.dtype).bytes * 8) - 1;
      break;
  }
  return s;
}

class Machine {
 public:
  Machine(const Kernel& k, std::span<void* const> pointers, std::span<const int64_t> sizes)
      : k_(k), pointers_(pointers) {
    FLASHOVER_CHECK(pointers.size() == k.params.size() && sizes.size() == k.sizes.size())
        << "wrong number of arguments";
    for (size_t i = 0; i < sizes.size(); ++i) values_[k.sizes[i].node()] = sizes[i];
    for (const Scratch& s : k.scratch) scratch_.emplace_back(static_cast<size_t>(evaluate(s.size)));
    for (const Param& p : k.params) numel_.push_back(evaluate(p.numel));
  }
  int32_t run() {
    accs_.resize(k_.accs.size());
    nest(k_.outer, 0, [&] {
      for (const Stage& s : k_.stages) {
        for (const Instr& in : s.body)
          if (in.op == Op::k_reduce || in.op == Op::k_scan) accs_[in.slot] = identity_of(k_.accs[in.slot]);
        registers_.assign(s.body.size(), {});
        nest(s.loops, 0, [&] { body(s.body); });
      }
    });
    return failed_;
  }

 private:
  int64_t evaluate(sym::Expr e) {
    return sym::evaluate(e, [&](sym::Expr v) {
      auto it = values_.find(v.node());
      FLASHOVER_CHECK(it != values_.end()) << "unbound variable " << v.str();
      return it->second;
    });
  }
  template <typename F>
  void nest(const std::vector<Loop>& loops, size_t depth, F&& f) {
    if (depth == loops.size()) return f();
    int64_t extent = evaluate(loops[depth].extent);
    for (int64_t i = 0; i < extent && !failed_; ++i) {
      values_[loops[depth].var.node()] = i;
      nest(loops, depth + 1, f);
    }
  }
  int64_t address(const Instr& in, int64_t size) {
    int64_t a = evaluate(in.index);
    FLASHOVER_CHECK(a >= 0 && a < size) << "address " << a << " of " << size << ": " << info(in.op).name << " ["
                                        << in.index.str() << "]\n"
                                        << print(k_);
    return a;
  }
  Scalar fold(int32_t slot, const Scalar& v, int64_t index) {
    const Accumulator& a = k_.accs[slot];
    AccState& s = accs_[slot];
    switch (a.kind) {
      case Reduce::kSum:
        s.value = scalar_op(a.dtype == DType::kBool ? Op::k_bitwise_or : Op::k_add, a.dtype, s.value, v, {});
        break;
      case Reduce::kProd:
        s.value = scalar_op(Op::k_mul, a.dtype, s.value, v, {});
        break;
      case Reduce::kMax:
        s.value = scalar_op(Op::k_maximum, a.dtype, s.value, v, {});
        break;
      case Reduce::kMin:
        s.value = scalar_op(Op::k_minimum, a.dtype, s.value, v, {});
        break;
      case Reduce::kAny:
        s.value.i |= v.i;
        break;
      case Reduce::kAll:
        s.value.i &= v.i;
        break;
      case Reduce::kArgMax:
      case Reduce::kArgMin: {
        // The first NaN wins, else the best, of equals the smallest index.
        bool old_nan = is_float(a.dtype) && std::isnan(s.value.f), new_nan = is_float(a.dtype) && std::isnan(v.f);
        bool better = scalar_op(a.kind == Reduce::kArgMax ? Op::k_gt : Op::k_lt, a.dtype, v, s.value, {}).i != 0;
        bool equal = scalar_op(Op::k_eq, a.dtype, v, s.value, {}).i != 0 || (old_nan && new_nan);
        if (!s.started || (!old_nan && (new_nan || better)) || (equal && index < s.index)) {
          s.value = v;
          s.index = index;
        }
        s.started = true;
        break;
      }
    }
    return s.value;
  }
  void body(const std::vector<Instr>& instrs) {
    for (size_t n = 0; n < instrs.size() && !failed_; ++n) {
      const Instr& in = instrs[n];
      auto arg = [&](int i) -> const Scalar& { return registers_[in.args[i]]; };
      Scalar& out = registers_[n];
      bool on = in.mask == kNone || registers_[in.mask].i != 0;
      if (is_scalar_op(in.op)) {
        static const Scalar kZero;
        if (in.op == Op::k_where) {
          out = arg(0).i ? arg(1) : arg(2);
          continue;
        }
        int arity = info(in.op).arity;
        out =
            scalar_op(in.op, instrs[in.args[0]].dtype, arg(0), arity > 1 ? arg(1) : kZero, arity > 2 ? arg(2) : kZero);
        continue;
      }
      switch (in.op) {
        case Op::k_convert:
          out = convert(instrs[in.args[0]].dtype, in.dtype, arg(0));
          break;
        case Op::k_round_to: {
          auto f = static_cast<float>(arg(0).f);
          out.f = in.narrow == DType::kBF16 ? bf16_to_float(float_to_bf16(f)) : f16_to_float(float_to_f16(f));
          break;
        }
        case Op::k_const:
          out = {in.dtype == DType::kF32 ? static_cast<float>(in.number) : in.number, in.integer};
          break;
        case Op::k_index:
          out.i = evaluate(in.index);
          break;
        case Op::k_in_range: {
          int64_t v = evaluate(in.index);
          out.i = evaluate(in.lo) <= v && v < evaluate(in.hi);
          break;
        }
        case Op::k_uniform:
        case Op::k_normal: {
          const auto u32 = [](int64_t v) { return static_cast<uint32_t>(static_cast<uint64_t>(v)); };
          const Drawn d = drawn(evaluate(in.index), evaluate(in.hi), in.integer);
          const int64_t counter = (arg(1).i >> 2) + evaluate(in.lo) + d.call;
          const auto bits =
              philox({u32(counter), u32(counter >> 32), u32(d.thread), 0}, u32(arg(0).i), u32(arg(0).i >> 32));
          out.f = in.op == Op::k_uniform ? uniform(bits[d.lane]) : normal(bits, d.lane);
          break;
        }
        case Op::k_indirect: {
          int64_t size = evaluate(in.hi), v = arg(0).i;
          if (in.wrap && v < 0) v += size;
          if (!on) {
            v = 0;
          } else if (v < 0 || v >= size) {
            FLASHOVER_CHECK(in.slot >= 0) << "unchecked indirect index " << v << " of " << size;
            failed_ = in.slot + 1;
          }
          values_[in.index.node()] = out.i = v;
          break;
        }
        case Op::k_load:
          out = on ? load(k_.params[in.slot].dtype, pointers_[in.slot], address(in, numel_[in.slot])) : Scalar{};
          break;
        case Op::k_store: {
          if (!on) break;
          int64_t a = address(in, numel_[in.slot]);
          DType d = k_.params[in.slot].dtype;
          Scalar v = arg(0);
          static constexpr Op kCombine[] = {Op::k_add, Op::k_add, Op::k_mul, Op::k_maximum, Op::k_minimum};
          if (in.mode != StoreMode::kSet)
            v = scalar_op(kCombine[static_cast<int>(in.mode)], instrs[in.args[0]].dtype, load(d, pointers_[in.slot], a),
                          v, {});
          store(d, pointers_[in.slot], a, v);
          break;
        }
        case Op::k_load_scratch:
          out = on ? scratch_[in.slot][address(in, static_cast<int64_t>(scratch_[in.slot].size()))] : Scalar{};
          break;
        case Op::k_store_scratch:
          if (on) scratch_[in.slot][address(in, static_cast<int64_t>(scratch_[in.slot].size()))] = arg(0);
          break;
        case Op::k_acc:
          if (k_.accs[in.slot].kind >= Reduce::kArgMax) {
            out.i = accs_[in.slot].index;
          } else {
            out = accs_[in.slot].value;
          }
          break;
        case Op::k_reduce:
          if (on) fold(in.slot, arg(0), in.args[1] == kNone ? 0 : arg(1).i);
          break;
        case Op::k_scan:
          out = on ? fold(in.slot, arg(0), 0) : accs_[in.slot].value;
          break;
        default:
          break;
      }
    }
  }

  const Kernel& k_;
  std::span<void* const> pointers_;
  std::unordered_map<const sym::Node*, int64_t> values_;
  std::vector<std::vector<Scalar>> scratch_;
  std::vector<int64_t> numel_;
  std::vector<AccState> accs_;
  std::vector<Scalar> registers_;
  int32_t failed_ = 0;
};

}  // namespace

int32_t interpret(const Kernel& k, std::span<void* const> pointers, std::span<const int64_t> sizes) {
  return Machine(k, pointers, sizes).run();
}

}  // namespace flashover::loops
