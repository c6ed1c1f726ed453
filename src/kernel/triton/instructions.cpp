// Scalar operations take their text from scalar.h; 64-bit integers that fit are computed in 32 bits.
#include "kernel/triton/instructions.h"

#include "base/check.h"
#include "kernel/triton/memory.h"
#include "kernel/triton/reductions.h"

namespace flashover::kernel::triton {
namespace {

using loops::Id;
using loops::Instr;
using loops::kNone;
using loops::Op;
using sym::Expr;

// Is a scalar operation on 64-bit integers done in 32 bits? Its operands are held in such, and the result fits as well,
// unless it is a bool.
bool is_narrow(const Emission& e, Id id, const Instr& in, int first) {
  if (e.stage.stage->body[in.args[first]].dtype != DType::kI64) return false;
  if (in.dtype == DType::kI64 && !e.stage.ranges[id]) return false;
  for (int i = first; i < loops::info(in.op).arity; ++i) {
    const EmittedValue& v = arg(e, in, i);
    if (v.dtype != DType::kI32 && !(v.literal && e.stage.ranges[in.args[i]])) return false;
  }
  return true;
}

void scalar_operation(Emission& e, Id id, const Instr& in) {
  const int n = loops::info(in.op).arity, first = in.op == Op::k_where ? 1 : 0;
  const DType declared = e.stage.stage->body[in.args[first]].dtype;
  const bool narrow = is_narrow(e, id, in, first);
  const DType operand = narrow ? DType::kI32 : declared;
  bool literals = true;
  std::vector<std::string> args;
  Axes axes = 0;
  for (int i = 0; i < n; ++i) {
    const EmittedValue& v = arg(e, in, i);
    axes |= v.axes;
    literals &= v.literal || i < first;
    args.push_back(i < first || narrow ? v.text : full(v, declared));
  }
  if (literals)  // Python would compute it, or not know how
    for (int i = first; i < n; ++i) args[i] = scalar_tensor(args[i], operand);
  if (first && arg(e, in, 0).literal) args[0] = scalar_tensor(args[0], DType::kBool);
  for (std::string& a : args)
    if (a[0] == '-') a = "(" + a + ")";
  define(e, id, axes, scalar(in.op, operand, args, e.fast || !e.stage.exact[id]),
         in.dtype == DType::kI64 && narrow ? DType::kI32 : in.dtype);
}

// An i64 that provably fits is made as an i32, unless indices need 64 bits.
void converted(Emission& e, Id id, const Instr& in) {
  const EmittedValue a = arg(e, in, 0);
  const DType to = in.dtype == DType::kI64 && e.stage.ranges[id] && !e.wide ? DType::kI32 : in.dtype;
  if (to != in.dtype && a.dtype == to && !a.literal) return set_value(e, id, a);
  define(e, id, a.literal ? Axes{0} : a.axes, convert(a.dtype, to, a.literal ? scalar_tensor(a.text, a.dtype) : a.text),
         to);
}

// Whole numbers of 8 bits are the same in 16-bit floats, and Triton has a quicker way there than over f32.
std::string text_to_round(const Emission& e, const Instr& in, const EmittedValue& a) {
  const Instr& made = e.stage.stage->body[in.args[0]];
  if (made.op != Op::k_convert || !is_reduced(in.narrow)) return a.text;
  const EmittedValue& from = arg(e, made, 0);
  return !from.literal && (from.dtype == DType::kI8 || from.dtype == DType::kU8) ? from.text : a.text;
}

void round_to(Emission& e, Id id, const Instr& in) {
  const EmittedValue a = arg(e, in, 0);
  if ((a.literal && is_reduced(in.narrow)) || a.rounded_to == in.narrow)  // constants are rounded by the store
    return set_value(e, id, a);
  define(e, id, a.axes, to_memory(in.narrow, text_to_round(e, in, a)), in.narrow);
  const std::string rounded = e.stage.values[id].text;
  define(e, id, a.axes, from_memory(in.narrow, rounded), DType::kF32);
  e.stage.values[id].rounded = rounded;
  e.stage.values[id].rounded_to = in.narrow;
}

void constant_value(Emission& e, Id id, const Instr& in) {
  const std::string text = constant(in.dtype, in.number, in.integer);
  if (text.starts_with("tl.")) return define(e, id, 0, text, in.dtype);
  set_value(e, id, {text, 0, in.dtype, true});
}

void index_value(Emission& e, Id id, const Instr& in) {
  const std::string t = text(e.at, in.index);
  if (in.index.is_const()) return set_value(e, id, {t, 0, DType::kI64, true});
  const Axes axes = axes_of(e.at, in.index);
  if (e.wide) return define(e, id, axes, t, DType::kI64);
  if (e.stage.ranges[id]) return define(e, id, axes, t, DType::kI32);
  define(e, id, axes, "(" + t + ").to(tl.int64)", DType::kI64);
}

void in_range(Emission& e, Id id, const Instr& in) {
  const std::string i = text(e.at, in.index);
  std::string t;
  if (!sym::known_le(in.lo, in.index)) t = "(" + i + " >= " + text(e.at, in.lo) + ")";
  if (!sym::known_lt(in.index, in.hi)) t = conjunction(t, "(" + i + " < " + text(e.at, in.hi) + ")");
  if (t.empty()) return set_value(e, id, {"True", 0, DType::kBool, true});
  define(e, id, axes_of(e.at, in.index) | axes_of(e.at, in.lo) | axes_of(e.at, in.hi), t, DType::kBool);
}

// Are four neighbours along the last axis the four numbers of one call of the generator?
bool neighbours_share(const Emission& e, const Instr& in, Axes axes) {
  const Axes last = e.tile.rows ? kR : kX;
  if (in.integer < 4 || !(axes & last)) return false;
  const std::vector<loops::Loop>& loops = e.tile.rows ? e.stage.stage->loops : e.tile.points;
  if (loops.empty() || !e.at.fours.contains(loops.back().var.node())) return false;
  const loops::Loop& l = loops.back();
  const auto step = sym::coefficient(in.index, l.var);
  const bool alone = loops.size() == 1 || (!e.tile.rows && e.tile.y);
  return step && step->is_const(1) && (alone || sym::known_divisible(l.extent, 4)) &&
         sym::known_divisible(in.index - l.var, 4);
}

// One call gives four numbers. Where neighbours share, it is made once for four of them, at the first, and the numbers
// are put side by side.
void random(Emission& e, Id id, const Instr& in) {
  const Expr i = relinearized(e.at, in.index), threads = in.hi, width = in.integer;
  const Axes axes = axes_of(e.at, i);
  const bool shared = neighbours_share(e, in, axes);
  Expr thread, call, lane;
  if (in.integer == 1) {
    const Expr group = sym::floordiv(i, threads);
    thread = sym::mod(i, threads);
    call = sym::floordiv(group, 4);
    lane = sym::mod(group, 4);
  } else {
    const Expr load = sym::floordiv(i, width), most = std::min<int64_t>(4, in.integer);
    thread = sym::mod(load, threads);
    call = sym::floordiv(load, threads) * std::max<int64_t>(1, in.integer / 4) + sym::floordiv(sym::mod(i, width), 4);
    lane = sym::mod(i, most);
  }
  e.at.by_fours = shared;
  const auto number = [&](Expr x) {
    const std::string t = text(e.at, x);
    return x.is_const() ? scalar_tensor(t, DType::kI32) : t;
  };
  std::string t = std::string("lib.") + (in.op == Op::k_uniform ? "uniform" : "normal") + (shared ? "_fours(" : "(");
  t += full(arg(e, in, 0), DType::kI64) + ", " + full(arg(e, in, 1), DType::kI64) + ", " + text(e.at, in.lo) + ", " +
       number(call) + ", " + number(thread) + ", ";
  const std::string whole = shape(e, axes);  // its last axis is four times as long as that of the calls
  t += shared ? whole.substr(1, whole.size() - 2) : text(e.at, lane);
  e.at.by_fours = false;
  define(e, id, axes, t + ")", DType::kF32);
}

// A message within quotes.
std::string quotable(const std::string& message) {
  std::string out;
  for (char c : message) out += c == '"' || c == '\\' || c < ' ' ? ' ' : c;
  return out;
}

void indirect(Emission& e, Id id, const Instr& in) {
  const EmittedValue a = arg(e, in, 0);
  const Axes axes = a.axes | mask_axes(e, in);
  const std::string t = fresh(e, "t"), size = text(e.at, in.hi);
  std::string v = a.literal ? scalar_tensor(a.text, DType::kI64) : e.wide ? full(a, DType::kI64) : a.text;
  if (in.wrap) {
    hoisted_line(e, axes, t + " = " + v + " + tl.where(" + v + " < 0, " + size + ", 0)");
    v = t;
  }
  const std::string m = in.mask == kNone ? "" : e.stage.values[in.mask].text;
  if (in.slot >= 0) {
    e.asserts = true;
    const std::string where = conjunction(tile_mask(e, axes), m), ok = "(" + v + " >= 0) & (" + v + " < " + size + ")";
    hoisted_line(e, axes,
                 "tl.device_assert(" + (where.empty() ? ok : "(" + ok + ") | ~(" + where + ")") + ", \"" +
                     quotable(e.k.errors[in.slot]) + "\")");
  }
  std::string final = m.empty() ? v : "tl.where(" + m + ", " + v + ", 0)";
  if (!e.wide && a.dtype != DType::kI32) final = (m.empty() ? v : "(" + final + ")") + ".to(tl.int32)";
  if (final != t) hoisted_line(e, axes, t + " = " + final);
  e.at.names[in.index.node()] = {t, axes};
  set_value(e, id, {t, axes, e.wide ? DType::kI64 : DType::kI32});
}

}  // namespace

void instruction(Emission& e, Id id) {
  const Instr& in = e.stage.stage->body[id];
  if (loops::is_scalar_op(in.op)) return scalar_operation(e, id, in);
  switch (in.op) {
    case Op::k_convert:
      return converted(e, id, in);
    case Op::k_round_to:
      return round_to(e, id, in);
    case Op::k_const:
      return constant_value(e, id, in);
    case Op::k_index:
      return index_value(e, id, in);
    case Op::k_in_range:
      return in_range(e, id, in);
    case Op::k_uniform:
    case Op::k_normal:
      return random(e, id, in);
    case Op::k_indirect:
      return indirect(e, id, in);
    case Op::k_load:
      return load(e, id, in);
    case Op::k_store:
      return store(e, in);
    case Op::k_load_scratch:
      return load_scratch(e, id, in);
    case Op::k_store_scratch:
      return store_scratch(e, in);
    case Op::k_acc:
      return read_accumulator(e, id, in);
    case Op::k_reduce:
      return reduce(e, in);
    case Op::k_scan:
      return scan(e, id, in);
    default:
      FLASHOVER_CHECK(false) << "triton: no instruction " << loops::info(in.op).name;
  }
}

}  // namespace flashover::kernel::triton
