// Elements outside of the tile's mask are neutral. Accumulators of bool count in i32.
#include "kernel/triton/reductions.h"

namespace flashover::kernel::triton {
namespace {

using loops::Accumulator;
using loops::Id;
using loops::Instr;
using loops::kNone;
using loops::Reduce;

DType folded_dtype(DType d) { return d == DType::kBool ? DType::kI32 : d; }

std::string neutral_element(const Accumulator& a) {
  if (a.dtype != DType::kBool) return identity(a.kind, a.dtype);
  return identity(a.kind, a.dtype) == "True" ? "1" : "0";
}

std::string acc_name(int32_t slot) { return "a" + num(slot); }

// Argument `n` over all of `axes` as `d`; `otherwise` where the mask is not set.
std::string operand(const Emission& e, const Instr& in, int n, DType d, const std::string& otherwise, Axes axes) {
  EmittedValue v = arg(e, in, n);
  if (v.dtype == DType::kBool && d == DType::kI32 && v.literal) v.text = v.text == "True" ? "1" : "0", v.dtype = d;
  if (v.dtype != d && !v.literal) v.text += std::string(".to(") + type_name(d) + ")";
  v.dtype = d;
  const std::string t = broadcast(e, v, axes), m = mask(e, in, axes);
  return m.empty() ? t : "tl.where(" + m + ", " + t + ", " + otherwise + ")";
}

// Before the loop over chunks.
void start(Emission& e, const std::string& name, Axes axes, const std::string& neutral, DType d) {
  before_loop(e, name + " = tl.full(" + shape(e, axes) + ", " + neutral + ", " + type_name(d) + ")");
}

void define_acc(Emission& e, int32_t slot, const std::string& text) {
  const bool counts = e.k.accs[slot].dtype == DType::kBool;
  (e.stage.looped ? e.stage.after : e.stage.body) +=
      "    " + acc_name(slot) + " = " + text + (counts ? " != 0" : "") + "\n";
}

// A fold over one element.
void fold_one(Emission& e, const Instr& in) {
  const Accumulator& a = e.k.accs[in.slot];
  const EmittedValue& v = arg(e, in, 0);
  Accumulated& acc = e.accumulated[in.slot];
  acc.axes = v.axes | mask_axes(e, in);
  std::string t = v.literal ? scalar_tensor(v.text, a.dtype) : full(v, a.dtype);
  if (in.mask != kNone)
    t = "tl.where(" + e.stage.values[in.mask].text + ", " + t + ", " + identity(a.kind, a.dtype) + ")";
  stage_line(e, acc_name(in.slot) + " = " + t);
  if (a.kind < Reduce::kArgMax) return;
  const EmittedValue& i = arg(e, in, 1);
  acc.axes |= i.axes;
  acc.position = DType::kI64;
  stage_line(e, acc_name(in.slot) + "_at = " + (i.literal ? scalar_tensor(i.text, DType::kI64) : full(i, DType::kI64)));
}

// argmax and argmin: a value and its position.
void reduce_position(Emission& e, const Instr& in) {
  const Accumulator& a = e.k.accs[in.slot];
  const std::string name = acc_name(in.slot), at = name + "_at";
  const DType d = folded_dtype(a.dtype);
  const Axes axes = all_axes(e);
  const char* fn = combine(a.kind, d);
  const DType position = arg(e, in, 1).dtype == DType::kI32 ? DType::kI32 : DType::kI64;
  e.accumulated[in.slot].position = position;
  const std::string last = position == DType::kI32 ? "0x7fffffff" : "0x7fffffffffffffff";
  const std::string v = fresh(e, "v"), i = fresh(e, "v");
  stage_line(e, v + " = " + operand(e, in, 0, d, neutral_element(a), axes));
  stage_line(e, i + " = " + operand(e, in, 1, position, last, axes));
  if (!e.stage.looped)
    return stage_line(e, name + ", " + at + " = tl.reduce((" + v + ", " + i + "), 1, " + fn + ", keep_dims=True)");
  start(e, name, axes, neutral_element(a), d);
  start(e, at, axes, last, position);
  // The rows' loops go up: within a lane only a greater value replaces an earlier one. A lane that met nothing but the
  // neutral element has no position; if that is so for a whole row, the answer is its first element.
  const auto range = e.stage.ranges[in.args[1]];
  const bool floats = is_floating(d) && range;
  const std::string step = floats ? std::string("lib.next_") + (a.kind == Reduce::kArgMax ? "argmax" : "argmin") : fn;
  stage_line(e, name + ", " + at + " = " + step + "(" + name + ", " + at + ", " + v + ", " + i + ")");
  after_loop(e, name + ", " + at + " = tl.reduce((" + name + ", " + at + "), 1, " + fn + ", keep_dims=True)");
  if (floats) after_loop(e, at + " = tl.where(" + at + " == " + last + ", " + num(range->lo) + ", " + at + ")");
}

}  // namespace

void reduce(Emission& e, const Instr& in) {
  const Accumulator& a = e.k.accs[in.slot];
  e.accumulated[in.slot].axes = kX;
  if (!e.stage.in_row) return fold_one(e, in);
  if (a.kind >= Reduce::kArgMax) return reduce_position(e, in);
  const std::string name = acc_name(in.slot);
  const DType d = folded_dtype(a.dtype);
  const Axes axes = all_axes(e);
  const char* fn = combine(a.kind, d);
  const std::string v = operand(e, in, 0, d, neutral_element(a), axes);
  const auto reduced = [&](const std::string& t) {
    if (a.kind == Reduce::kSum && is_floating(d)) return "tl.sum(" + t + ", 1, keep_dims=True)";
    return "tl.reduce(" + t + ", 1, " + fn + ", keep_dims=True)";
  };
  if (!e.stage.looped) return define_acc(e, in.slot, reduced(v));
  start(e, name, axes, neutral_element(a), d);
  stage_line(
      e, name + " = " + (a.kind == Reduce::kSum ? name + " + " + v : std::string(fn) + "(" + name + ", " + v + ")"));
  define_acc(e, in.slot, reduced(name));
}

void scan(Emission& e, Id id, const Instr& in) {
  const Accumulator& a = e.k.accs[in.slot];
  const std::string name = acc_name(in.slot);
  e.accumulated[in.slot].axes = kX;
  if (!e.stage.in_row) {
    fold_one(e, in);
    return set_value(e, id, {name, e.accumulated[in.slot].axes, a.dtype});
  }
  const std::string v = fresh(e, "v"), running = fresh(e, "v");
  const DType d = folded_dtype(a.dtype);
  const Axes axes = all_axes(e);
  const std::string fn = combine(a.kind, d);
  stage_line(e, v + " = " + operand(e, in, 0, d, neutral_element(a), axes));
  stage_line(e, running + " = tl.associative_scan(" + v + ", 1, " + fn + ")");
  const std::string total = "tl.reduce(" + v + ", 1, " + fn + ", keep_dims=True)";
  if (e.stage.looped) {
    start(e, name, kX, neutral_element(a), d);
    stage_line(e, running + " = " + fn + "(" + name + ", " + running + ")");
    stage_line(e, name + " = " + fn + "(" + name + ", " + total + ")");
    if (a.dtype == DType::kBool) after_loop(e, name + " = " + name + " != 0");
  } else {
    define_acc(e, in.slot, total);
  }
  if (a.dtype == DType::kBool) stage_line(e, running + " = " + running + " != 0");
  set_value(e, id, {running, axes, a.dtype});
}

void read_accumulator(Emission& e, Id id, const Instr& in) {
  const Accumulated& acc = e.accumulated[in.slot];
  const bool position = e.k.accs[in.slot].kind >= Reduce::kArgMax;
  set_value(e, id, {acc_name(in.slot) + (position ? "_at" : ""), acc.axes, position ? acc.position : in.dtype});
}

}  // namespace flashover::kernel::triton
