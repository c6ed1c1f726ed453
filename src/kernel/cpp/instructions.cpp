// Scalar operations take their text from scalar.h; what depends on the lanes (indices, ranges) is written here.
#include "kernel/cpp/instructions.h"

#include <algorithm>

#include "base/check.h"
#include "kernel/cpp/accumulators.h"
#include "kernel/cpp/index.h"
#include "kernel/cpp/memory.h"
#include "kernel/cpp/values.h"

namespace flashover::kernel::cpp {
namespace {

using loops::Id;
using loops::Instr;
using loops::kNone;
using loops::Op;

bool reads(const Instr& user, Id i) { return std::find(user.args.begin(), user.args.end(), i) != user.args.end(); }

// The float that value i is in every call. (A converted one that stands further down has no value yet.)
std::optional<double> constant_float(const Scope& s, Id i) {
  const Instr& in = s.stage->body[i];
  if (s.values[i].literal && is_floating(in.dtype)) return s.values[i].number;
  const Instr& c = in.op == Op::k_convert ? s.stage->body[in.args[0]] : in;
  return c.op == Op::k_const && is_floating(c.dtype) ? std::optional(c.number) : std::nullopt;
}

Id operand_beside(const Instr& in, Id i) { return in.args[in.args[0] == i ? 1 : 0]; }

// Only the absolute error of value i counts: it is multiplied by what varies or added to it (gelu and its gradient), at
// once or after constant factors. A distribution's logarithm of 1 + erf(x) wants the last bits of the tail.
bool is_factor_or_term(const Scope& s, Id i) {
  for (Id u = 0; u < static_cast<Id>(s.stage->body.size()); ++u) {
    const Instr& user = s.stage->body[u];
    if (!reads(user, i)) continue;
    if (user.op != Op::k_mul && user.op != Op::k_add) return false;
    if (!constant_float(s, operand_beside(user, i))) continue;
    if (user.op == Op::k_add || !is_factor_or_term(s, u)) return false;
  }
  return true;
}

// Inside x (1 + tanh(y)) and x (1 + erf(y)) (gelu), and where the result is rounded to 16 bits at once, 5 ulp are as
// good.
bool may_be_fast(const Emission& e, const Scope& s, Id i) {
  const Instr& in = s.stage->body[i];
  if (e.k.exact || (in.op != Op::k_tanh && in.op != Op::k_erf) || e.facts.lanes.width == 1 || in.dtype != DType::kF32)
    return false;
  if (!s.values[in.args[0]].varying) return false;
  bool used = false;
  for (Id u = 0; u < static_cast<Id>(s.stage->body.size()); ++u) {
    const Instr& user = s.stage->body[u];
    if (!reads(user, i)) continue;
    used = true;
    if (user.op == Op::k_round_to) continue;
    if (user.op == Op::k_store && is_reduced(e.k.params[user.slot].dtype)) continue;
    if (user.op == Op::k_add && constant_float(s, operand_beside(user, i)) == 1 && is_factor_or_term(s, u)) continue;
    return false;
  }
  return used;
}

// 1 / value for divisions of a whole row; written once, beside the value.
std::string reciprocal(const Emission& e, const Scope& s, Id i) {
  const EmittedValue& v = s.values[i];
  return v.literal ? e.ns(false) + "div_by(" + v.text + ")" : "v" + num(i) + "r";
}

// Powers that eager computes by other means, too; "" for others.
std::string power(const Emission& e, const Scope& s, const Instr& in, const std::string& x, RegisterClass c,
                  bool vector) {
  const EmittedValue& exponent = s.values[in.args[1]];
  if (!exponent.literal || (c != RegisterClass::kF && c != RegisterClass::kD)) return "";
  const std::string library = e.ns(vector) + (c == RegisterClass::kF ? "v_" : "d_");
  const std::string one = e.constant(c, 1, 1, vector);
  if (exponent.number == 2) return x + " * " + x;
  if (exponent.number == 3) return x + " * " + x + " * " + x;
  if (exponent.number == 0.5) return library + "sqrt(" + x + ")";
  if (exponent.number == -0.5) return library + "rsqrt(" + x + ")";
  if (exponent.number == -1) return one + " / " + x;
  if (exponent.number == -2) return one + " / (" + x + " * " + x + ")";
  return "";
}

// The dtype that a scalar operation is done in: index arithmetic stays in 32 bits when every operand and the result
// fit.
DType operating_dtype(const Scope& s, Id i, int first, int arity) {
  const Instr& in = s.stage->body[i];
  const DType d = s.stage->body[in.args[first]].dtype;
  if (d != DType::kI64 || (in.dtype == DType::kI64 && !s.facts->ranges[i])) return d;
  for (int a = first; a < arity; ++a)
    if (!s.facts->ranges[in.args[a]]) return d;
  return DType::kI32;
}

void scalar_operation(Emission& e, Scope& s, Id i) {
  const Instr& in = s.stage->body[i];
  const int first = in.op == Op::k_where ? 1 : 0, arity = loops::info(in.op).arity;
  bool varying = false;
  for (Id a : in.args) varying |= varies(s, a);
  const DType d = operating_dtype(s, i, first, arity);
  const RegisterClass c = class_of(d);
  const DType result = in.dtype == DType::kI64 && d == DType::kI32 ? DType::kI32 : in.dtype;
  const bool fast = may_be_fast(e, s, i);
  define(e, s, i, varying, result, [&](int u) {
    std::string t[3];
    for (int a = 0; a < arity; ++a) t[a] = operand(e, s, in.args[a], u, a < first ? RegisterClass::kB : c, varying);
    if (in.op == Op::k_where && varying && !s.values[in.args[0]].varying)
      return "(" + s.values[in.args[0]].name(u) + " ? " + t[1] + " : " + t[2] + ")";
    if (fast) return std::string(in.op == Op::k_tanh ? "v_tanh_fast(" : "v_erf_fast(") + t[0] + ")";
    if (in.op == Op::k_div && varying && c == RegisterClass::kF && !s.values[in.args[1]].varying)
      return "v_div_by(" + t[0] + ", " + operand(e, s, in.args[1], u, c, false) + ", " + reciprocal(e, s, in.args[1]) +
             ")";
    if (in.op == Op::k_pow)
      if (std::string text = power(e, s, in, t[0], c, varying); !text.empty()) return text;
    return operation(in.op, d, t[0], t[1], t[2], varying, e.ns(varying));
  });
}

void convert(Emission& e, Scope& s, Id i) {
  const Instr& in = s.stage->body[i];
  if (const EmittedValue& c = s.values[in.args[0]]; c.literal) {
    const bool from = is_floating(c.dtype), to = is_floating(in.dtype);
    if (in.dtype == DType::kBool) return set_literal(e, s, i, 0, from ? c.number != 0 : c.integer != 0);
    if (to) return set_literal(e, s, i, from ? c.number : static_cast<double>(c.integer), 0);
    if (!from && info(in.dtype).bytes == 8) return set_literal(e, s, i, 0, c.integer);
  }
  const bool varying = varies(s, in.args[0]);
  const DType from = narrowed(*s.facts, *s.stage, in.args[0]), to = narrowed(*s.facts, *s.stage, i);
  define(e, s, i, varying, to, [&](int u) {
    return conversion(from, to, operand(e, s, in.args[0], u, class_of(from), varying), varying, e.ns(varying));
  });
}

void round_to(Emission& e, Scope& s, Id i) {
  const Instr& in = s.stage->body[i];
  const Id from = unrounded(s, in.args[0], in.narrow);
  const bool varying = varies(s, from);
  define(e, s, i, varying, DType::kF32, [&](int u) {
    return e.ns(varying) + (in.narrow == DType::kBF16 ? "round_bf16(" : "round_f16(") +
           operand(e, s, from, u, RegisterClass::kF, varying) + ")";
  });
}

void index_value(Emission& e, Scope& s, Id i) {
  const Instr& in = s.stage->body[i];
  const LaneStep step = step_of(s, in.index);
  const DType d = narrowed(*s.facts, *s.stage, i);
  const bool narrow = d == DType::kI32;
  if (step.uniform()) {
    define(e, s, i, false, d, [&](int) { return (narrow ? "(int)" : "") + index(e, s, in.index); });
  } else if (step.kind == LaneStep::kStride) {
    define(e, s, i, true, d, [&](int u) {
      const std::string base = index_of_copy(e, s, in.index, u);
      const std::string at = narrow ? "(int)" + base : base, suffix = narrow ? "" : "_l";
      if (step.stride == 1) return "iota" + suffix + "(" + at + ")";
      const std::string splat = narrow ? "splat_i(" : "splat_l(";
      return splat + at + ") + iota" + suffix + "(0) * " + splat + num(step.stride) + ")";
    });
  } else {
    define_by_lane(e, s, i, d, [&](int u) { return index_of_lane(e, s, in.index, u); });
  }
}

void in_range(Emission& e, Scope& s, Id i) {
  const Instr& in = s.stage->body[i];
  const LaneStep step = step_of(s, in.index);
  const bool uniform_bounds = step_of(s, in.lo).uniform() && step_of(s, in.hi).uniform();
  auto test = [&](const std::function<std::string(sym::Expr)>& at) {
    const std::string x = at(in.index);
    return "(" + x + " >= " + at(in.lo) + ") & (" + x + " < " + at(in.hi) + ")";
  };
  auto first_lane = [&](int) { return test([&](sym::Expr x) { return index(e, s, x); }); };
  if (s.vector && tests_whole_vectors(in, s.lanes)) {
    if (s.run.copies == 1) return define(e, s, i, false, DType::kBool, first_lane);
    define(e, s, i, true, DType::kBool, [&](int u) {  // alike within each copy
      return "splat_m(" + test([&](sym::Expr x) { return index_of_copy(e, s, x, u); }) + ")";
    });
  } else if (step.uniform() && uniform_bounds) {
    define(e, s, i, false, DType::kBool, first_lane);
  } else if (step.contiguous() && uniform_bounds) {
    define(e, s, i, true, DType::kBool, [&](int u) {
      const std::string x = index_of_copy(e, s, in.index, u);
      return "lanes_in(" + index(e, s, in.lo) + " - " + x + ", " + index(e, s, in.hi) + " - " + x + ")";
    });
  } else {
    define_by_lane(e, s, i, DType::kBool,
                   [&](int u) { return "(" + test([&](sym::Expr x) { return index_of_lane(e, s, x, u); }) + ")"; });
  }
}

bool is_read(const Scope& s, Id i) {
  return std::any_of(s.stage->body.begin(), s.stage->body.end(),
                     [&](const Instr& user) { return user.mask == i || reads(user, i); });
}

// Checks a value that becomes an index and writes it to `target`.
std::string checked_index(const Instr& in, const std::string& size, const std::string& target, const std::string& value,
                          const std::string& mask) {
  std::string text = "{ long t = " + value + ";";
  if (in.wrap) text += " if (t < 0) t += " + size + ";";
  if (in.slot >= 0)
    text += " if ((unsigned long)t >= (unsigned long)" + size + ") { __atomic_store_n(&job->error, " +
            num(in.slot + 1) + ", __ATOMIC_RELAXED); t = 0; }";
  return (mask.empty() ? "" : "if (" + mask + ") ") + text + " " + target + " = t; }";
}

void indirect(Emission& e, Scope& s, Id i) {
  const Instr& in = s.stage->body[i];
  const bool varying = varies(s, in.args[0]) || varies(s, in.mask);
  const std::string name = "t" + num(i), size = index(e, in.hi);
  s.indirect[in.index.node()] = {name, varying};
  if (!varying) {
    e.out.line("long " + name + " = 0;");
    e.out.line(checked_index(in, size, name, operand(e, s, in.args[0], 0, RegisterClass::kL, false),
                             in.mask == kNone ? "" : mask_text(s, in, 0)));
  }
  for (int u = 0; varying && u < s.run.copies; ++u) {
    const EmittedValue& v = s.values[in.args[0]];
    const std::string array = name + "_" + num(u);
    e.out.line("long " + array + "[W] = {};");
    const std::string value = v.varying ? v.name(u) + "[l]" : operand(e, s, in.args[0], u, RegisterClass::kL, false);
    const std::string mask = in.mask == kNone ? "" : mask_text(s, in, u) + (varies(s, in.mask) ? "[l]" : "");
    e.out.line("for (int l = 0; l < " + lane_count(s) + "; ++l) " +
               checked_index(in, size, array + "[l]", value, mask));
  }
  // Beside the variable there is the value itself, for instructions that read it.
  EmittedValue& v = s.values[i];
  v.varying = varying;
  v.dtype = DType::kI64;
  v.cls = RegisterClass::kL;
  v.text = varying ? "v" + num(i) : name;
  if (varying && is_read(s, i))
    define_by_lane(e, s, i, DType::kI64, [&](int u) { return name + "_" + num(u) + "[l]"; });
}

}  // namespace

bool is_row_divisor(const Scope& s, Id i) {
  if (!s.vector || s.stage->body[i].dtype != DType::kF32 || s.values[i].literal || s.values[i].varying) return false;
  return std::any_of(s.stage->body.begin(), s.stage->body.end(),
                     [&](const Instr& user) { return user.op == Op::k_div && user.args[1] == i; });
}

void instruction(Emission& e, Scope& s, Id i) {
  const Instr& in = s.stage->body[i];
  if (loops::is_scalar_op(in.op)) return scalar_operation(e, s, i);
  switch (in.op) {
    case Op::k_const:
      return set_literal(e, s, i, in.number, in.integer);
    case Op::k_convert:
      return convert(e, s, i);
    case Op::k_round_to:
      return round_to(e, s, i);
    case Op::k_index:
      return index_value(e, s, i);
    case Op::k_in_range:
      return in_range(e, s, i);
    case Op::k_uniform:
    case Op::k_normal:
      throw Declined("the CUDA generator's numbers on a CPU");
    case Op::k_indirect:
      return indirect(e, s, i);
    case Op::k_load:
    case Op::k_load_scratch:
      return load(e, s, i);
    case Op::k_acc:
      return read_accumulator(e, s, i);
    case Op::k_store:
    case Op::k_store_scratch:
      return store(e, s, i);
    case Op::k_reduce:
    case Op::k_scan:
      return fold(e, s, i);
    default:
      FLASHOVER_CHECK(false) << "cannot emit " << loops::info(in.op).name;
  }
}

}  // namespace flashover::kernel::cpp
