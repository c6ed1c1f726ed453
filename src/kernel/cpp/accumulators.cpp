// NaN wins over every number in max and min, the first NaN in argmax and argmin; of equals the first.
#include "kernel/cpp/accumulators.h"

#include <algorithm>

#include "kernel/cpp/values.h"
#include "kernel/neutral.h"

namespace flashover::kernel::cpp {
namespace {

using loops::Accumulator;
using loops::Id;
using loops::Instr;
using loops::kNone;
using loops::Op;
using loops::Reduce;

bool finds_position(const Accumulator& acc) { return acc.kind >= Reduce::kArgMax; }

Op combining(Reduce kind) {
  switch (kind) {
    case Reduce::kProd:
      return Op::k_mul;
    case Reduce::kMax:
      return Op::k_maximum;
    case Reduce::kMin:
      return Op::k_minimum;
    case Reduce::kAny:
      return Op::k_bitwise_or;
    case Reduce::kAll:
      return Op::k_bitwise_and;
    default:
      return Op::k_add;
  }
}

// Along a row, max and min run on the one-instruction operation, which loses NaN, and look for NaN two vectors at a
// time.
bool tracks_nan(const Emission& e, const Scope& s, int32_t acc) {
  const Accumulator& a = e.k.accs[acc];
  return e.inner() && s.vector && a.dtype == DType::kF32 && (a.kind == Reduce::kMax || a.kind == Reduce::kMin);
}

// The one-instruction operation.
std::string quick_extreme(const Emission& e, int32_t acc, const std::string& x, const std::string& a) {
  return std::string(e.k.accs[acc].kind == Reduce::kMax ? "v_max2(" : "v_min2(") + x + ", " + a + ")";
}

// Of lanes the best, of equals the one that stands first in the row.
void finish_position(Emission& e, const Scope& s, int32_t acc) {
  const Accumulator& k = e.k.accs[acc];
  const std::string x = acc_name(acc, s.vector, 0), name = "a" + num(acc);
  e.out.line(std::string(type_name(class_of(k.dtype), false)) + " " + name + " = " + x + "[0];");
  e.out.line("long " + name + "i = " + x + "i[0];");
  const char* than = k.kind == Reduce::kArgMax ? ">" : "<";
  e.out.line("for (int l = 1; l < W; ++l)");
  e.out.line("  if (((" + name + " == " + name + ") & ((" + x + "[l] != " + x + "[l]) | (" + x + "[l] " + than + " " +
             name + "))) |");
  e.out.line("      (((" + x + "[l] == " + name + ") | ((" + x + "[l] != " + x + "[l]) & (" + name + " != " + name +
             "))) & (" + x + "i[l] < " + name + "i)))");
  e.out.line("    " + name + " = " + x + "[l], " + name + "i = " + x + "i[l];");
}

// One scalar out of the lanes of vector `x`.
std::string across_lanes(const Emission& e, const Accumulator& k, const std::string& x) {
  const RegisterClass c = class_of(k.dtype);
  if (c == RegisterClass::kB) {
    const bool any = k.kind == Reduce::kAny || k.kind == Reduce::kSum || k.kind == Reduce::kMax;
    return any ? "any_lane(" + x + ")" : "!any_lane(m_not(" + x + "))";
  }
  const char* suffix = c == RegisterClass::kF   ? ""
                       : c == RegisterClass::kD ? "_d"
                       : c == RegisterClass::kI ? "_i"
                                                : "_l";
  const char* function = k.kind == Reduce::kSum    ? "hsum"
                         : k.kind == Reduce::kProd ? "hprod"
                         : k.kind == Reduce::kMax  ? "hmax"
                                                   : "hmin";
  return wrapped(k.dtype, std::string(function) + suffix + "(" + x + ")", e.ns(false));
}

// The lanes that a fold takes in: "" for all.
std::string fold_mask(const Emission& e, const Scope& s, const Instr& in, int copy) {
  std::string mask;
  if (in.mask != kNone) mask = operand(e, s, in.mask, copy, RegisterClass::kB, s.vector);
  if (!e.inner() || !s.vector || s.run.count.empty()) return mask;
  const std::string tail = "lanes_below(" + s.run.count + ")";
  return mask.empty() ? tail : "(" + mask + " & " + tail + ")";
}

// argmax and argmin: the first NaN wins, else the best, of equals the smallest index.
void fold_position(Emission& e, Scope& s, const Instr& in) {
  const Accumulator& k = e.k.accs[in.slot];
  const RegisterClass c = class_of(k.dtype);
  const bool vector = s.vector, narrow = vector && has_narrow_position(e, in.slot);
  const RegisterClass ic = narrow ? RegisterClass::kI : RegisterClass::kL;
  const DType id = narrow ? DType::kI32 : DType::kI64;
  const bool tail = e.inner() && vector && !s.run.count.empty();
  auto compare = [&](Op op, DType d, const std::string& a, const std::string& b) {
    return "(" + operation(op, d, a, b, "", vector, e.ns(vector)) + ")";
  };
  for (int u = 0; u < s.vectors(); ++u) {
    const std::string acc = acc_name(in.slot, vector, u);
    e.out.open();
    e.out.line(std::string("const ") + type_name(c, vector) + " x = " + operand(e, s, in.args[0], u, c, vector) + ";");
    e.out.line(std::string("const ") + type_name(ic, vector) + " at = " + operand(e, s, in.args[1], u, ic, vector) +
               ";");
    const std::string better = compare(k.kind == Reduce::kArgMax ? Op::k_gt : Op::k_lt, k.dtype, "x", acc),
                      equal = compare(Op::k_eq, k.dtype, "x", acc), earlier = compare(Op::k_lt, id, "at", acc + "i");
    std::string take;
    if (is_floating(k.dtype)) {
      const std::string new_nan = compare(Op::k_ne, k.dtype, "x", "x"), old_ok = compare(Op::k_eq, k.dtype, acc, acc),
                        old_nan = compare(Op::k_ne, k.dtype, acc, acc);
      take = "(" + old_ok + " & (" + new_nan + " | " + better + ")) | ((" + equal + " | (" + old_nan + " & " + new_nan +
             ")) & " + earlier + ")";
    } else {
      take = better + " | (" + equal + " & " + earlier + ")";
    }
    e.out.line(std::string("const ") + type_name(RegisterClass::kB, vector) + " take = " + "(" + take + ")" +
               (in.mask == kNone ? "" : " & " + operand(e, s, in.mask, u, RegisterClass::kB, vector)) +
               (tail ? " & lanes_below(" + s.run.count + ")" : "") + ";");
    e.out.line(acc + " = " + operation(Op::k_where, k.dtype, "take", "x", acc, vector, e.ns(vector)) + ";");
    e.out.line(acc + "i = " + operation(Op::k_where, id, "take", "at", acc + "i", vector, e.ns(vector)) + ";");
    e.out.close();
  }
}

}  // namespace

std::string acc_name(int32_t acc, bool vector, int copy) { return "a" + num(acc) + (vector ? "_" + num(copy) : ""); }

bool has_narrow_position(const Emission& e, int32_t acc) {
  for (size_t n = 0; n < e.k.stages.size(); ++n)
    for (const Instr& in : e.k.stages[n].body)
      if (in.op == Op::k_reduce && in.slot == acc) return e.facts.stages[n].ranges[in.args[1]].has_value();
  return false;
}

std::string identity(const Emission& e, int32_t acc, bool vector) {
  const Accumulator& a = e.k.accs[acc];
  const Neutral n = neutral(a.kind, a.dtype);
  return e.constant(class_of(a.dtype), n.number, n.integer, vector);
}

std::string folded(const Emission& e, int32_t acc, const std::string& a, const std::string& x, bool vector) {
  const Accumulator& k = e.k.accs[acc];
  return operation(combining(k.kind), k.dtype, a, x, "", vector, e.ns(vector));
}

void declare_accumulator(Emission& e, const Scope& s, int32_t acc) {
  const RegisterClass c = class_of(e.k.accs[acc].dtype);
  for (int u = 0; u < s.vectors(); ++u) {
    const std::string name = acc_name(acc, s.vector, u);
    e.out.line(std::string(type_name(c, s.vector)) + " " + name + " = " + identity(e, acc, s.vector) + ";");
    if (!finds_position(e.k.accs[acc])) continue;
    const bool narrow = s.vector && has_narrow_position(e, acc);
    const RegisterClass position = narrow ? RegisterClass::kI : RegisterClass::kL;
    e.out.line(std::string(type_name(position, s.vector)) + " " + name +
               "i = " + e.constant(position, 0, narrow ? INT32_MAX : INT64_MAX, s.vector) + ";");
  }
  if (tracks_nan(e, s, acc)) e.out.line("unsigned a" + num(acc) + "_nan = 0;");
}

void finish_accumulator(Emission& e, const Scope& s, int32_t acc) {
  if (!s.vector) return;
  const Accumulator& k = e.k.accs[acc];
  if (finds_position(k)) return finish_position(e, s, acc);
  const bool nan = tracks_nan(e, s, acc);
  const std::string name = "a" + num(acc);
  std::string x = acc_name(acc, true, 0);
  for (int u = 1; u < s.run.copies; ++u) {
    const std::string other = acc_name(acc, true, u);
    x = nan ? quick_extreme(e, acc, x, other) : "(" + folded(e, acc, x, other, true) + ")";
  }
  std::string r = across_lanes(e, k, x);
  if (nan) r = name + "_nan ? __builtin_nanf(\"\") : " + r;
  e.out.line(std::string("const ") + type_name(class_of(k.dtype), false) + " " + name + " = " + r + ";");
}

void fold(Emission& e, Scope& s, Id i) {
  const Instr& in = s.stage->body[i];
  const Accumulator& k = e.k.accs[in.slot];
  const bool vector = s.vector;
  if (finds_position(k)) return fold_position(e, s, in);
  const bool tail = e.inner() && vector && !s.run.count.empty(), nan = tracks_nan(e, s, in.slot);
  // Of equals (-0 and 0) a scan keeps the last, a reduction the first.
  const bool scan = in.op == Op::k_scan;
  const auto step = [&](const std::string& acc, const std::string& x) {
    return scan ? folded(e, in.slot, x, acc, vector) : folded(e, in.slot, acc, x, vector);
  };
  std::vector<std::string> taken;  // that may be NaN
  for (int u = 0; u < s.vectors(); ++u) {
    const std::string acc = acc_name(in.slot, vector, u);
    std::string x = operand(e, s, in.args[0], u, class_of(k.dtype), vector);
    const std::string mask = fold_mask(e, s, in, u);
    if (in.mask != kNone && !s.values[in.mask].varying && !tail && !nan) {
      e.out.line("if (" + mask_text(s, in, u) + ") " + acc + " = " + step(acc, x) + ";");
      continue;
    }
    if (!mask.empty())
      x = "(" + operation(Op::k_where, k.dtype, mask, x, identity(e, in.slot, true), true, e.ns(vector)) + ")";
    if (nan) {
      taken.push_back("x" + num(i) + "_" + num(u));
      e.out.line("const VF " + taken.back() + " = " + x + ";");
      x = taken.back();
    }
    e.out.line(acc + " = " + (nan ? quick_extreme(e, in.slot, x, acc) : step(acc, x)) + ";");
  }
  for (size_t u = 0; u < taken.size(); u += 2)
    e.out.line("a" + num(in.slot) + "_nan |= unordered(" + taken[u] + ", " + taken[std::min(u + 1, taken.size() - 1)] +
               ");");
  if (scan) define(e, s, i, vector, in.dtype, [&](int u) { return acc_name(in.slot, s.vector, u); });
}

void read_accumulator(Emission& e, Scope& s, Id i) {
  const Instr& in = s.stage->body[i];
  const bool varying = e.outer() && s.vector;
  EmittedValue& v = s.values[i];
  v.varying = varying;
  if (!finds_position(e.k.accs[in.slot])) {
    v.dtype = in.dtype;
    v.cls = class_of(v.dtype);
    v.text = "a" + num(in.slot);
    return;
  }
  // A position's name carries the copy before the letter.
  const DType d = varying && has_narrow_position(e, in.slot) ? DType::kI32 : DType::kI64;
  define(e, s, i, varying, d, [&](int u) { return acc_name(in.slot, varying, u) + "i"; });
}

}  // namespace flashover::kernel::cpp
