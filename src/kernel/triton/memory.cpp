// Narrow floats are widened by loads and rounded by stores.
#include "kernel/triton/memory.h"

#include "base/check.h"
#include "ops/floats.h"

namespace flashover::kernel::triton {
namespace {

using loops::Id;
using loops::Instr;
using loops::kNone;
using loops::StoreMode;
using sym::Expr;

// The dtype that a kernel computes in.
DType compute_dtype(DType d) { return is_narrow_float(d) ? DType::kF32 : d; }

int row_of(const Emission& e, Axes axes) { return axes & kR ? e.stage.row : -1; }

const EmittedValue* available(const Emission& e, int32_t slot, Expr index, Axes axes) {
  for (const Available& a : e.available)
    if (a.slot == slot && a.index == index && a.row == row_of(e, axes)) return &a.value;
  return nullptr;
}

void make_available(Emission& e, int32_t slot, Expr index, const EmittedValue& v, Axes axes) {
  if (has_indirect(index) || v.axes != axes) return;
  if (e.stage.looped && (axes & kR)) return;
  e.available.push_back({slot, index, row_of(e, axes), v});
}

// " + index" of an access by `axes`; `own`: those of the index itself.
std::string offset(const Emission& e, Expr i, Axes own, Axes axes) {
  if (own == axes) return i.is_const(0) ? "" : " + " + index(e.at, i);
  return " + (" + index(e.at, i) + " + tl.zeros(" + shape(e, axes) + ", tl.int32))";
}

// An operand of a product, all of its tile.
void store_operand(Emission& e, const EmittedValue& v, const std::string& value, DType held, DType d) {
  const std::string whole = broadcast(e, {value, v.axes, held, v.literal}, kX | kY);
  e.result = fresh(e, "t");
  const std::string& inner = e.role.side ? e.y_mask : e.x_mask;  // what lies outside adds nothing
  const std::string kept = inner.empty() ? whole : "tl.where(" + inner + ", " + whole + ", 0.0)";
  stage_line(e, e.result + " = " + kept + ".to(" + type_name(d) + ")");
}

// Where an access goes, and which of its points.
struct Destination {
  std::string address, mask;
  Axes axes;
  std::string tail() const { return mask.empty() ? ")" : ", " + mask + ")"; }
};

// Points of the stage may meet.
void store_atomically(Emission& e, const Instr& in, DType d, const Destination& to, const std::string& value) {
  const char* name = in.mode == StoreMode::kAdd   ? "add"
                     : in.mode == StoreMode::kMax ? "max"
                     : in.mode == StoreMode::kMin ? "min"
                                                  : nullptr;
  const bool sized = d == DType::kI32 || d == DType::kI64;
  if (!name || !(sized || (in.mode == StoreMode::kAdd && is_floating(d))))
    throw Declined(std::string("triton: no atomic for this store to ") + info(d).name);
  const EmittedValue& a = arg(e, in, 0);
  std::string v = value;
  if (is_reduced(d) || a.literal || a.axes == 0)
    v = "tl.broadcast_to(" + (a.literal ? scalar_tensor(value, compute_dtype(d)) : value) + ", " + shape(e, to.axes) +
        ").to(" + type_name(d) + ")";
  stage_line(e, std::string("tl.atomic_") + name + "(" + to.address + ", " + v +
                    (to.mask.empty() ? "" : ", " + to.mask) + ", sem=\"relaxed\")");
}

// Points that never meet: read, combine, write.
void store_combined(Emission& e, const Instr& in, DType d, const Destination& to, const std::string& value) {
  const std::string old = fresh(e, "v");
  stage_line(e, old + " = tl.load(" + to.address + to.tail() + (is_reduced(d) ? ".to(tl.float32)" : ""));
  static constexpr const char* kCombined[] = {"", "$ + ", "$ * ", "lib.maximum($, ", "lib.minimum($, "};
  std::string text = kCombined[static_cast<size_t>(in.mode)];
  if (!is_floating(d) && in.mode >= StoreMode::kMax) text.replace(0, 3, "tl");
  text.replace(text.find('$'), 1, old);
  text += value + (in.mode >= StoreMode::kMax ? ")" : "");
  stage_line(e, "tl.store(" + to.address + ", " + text + to.tail());
}

}  // namespace

void load(Emission& e, Id id, const Instr& in) {
  if (e.role.epilogue_of && in.slot == e.role.epilogue_of->slot) return set_value(e, id, {"acc", kX | kY, DType::kF32});
  const loops::Param& p = e.k.params[in.slot];
  if (p.number) return set_value(e, id, {e.role.parameter + num(in.slot), 0, p.dtype});
  const Axes own = axes_of(e.at, in.index), axes = own | mask_axes(e, in);
  if (in.mask == kNone)
    if (const EmittedValue* v = available(e, in.slot, in.index, axes)) return set_value(e, id, *v);
  const std::string m = mask(e, in, axes);
  std::string t = "tl.load(" + e.role.parameter + num(in.slot) + offset(e, in.index, own, axes) +
                  (m.empty() ? "" : ", " + m + ", 0") + ")";
  if (is_narrow_float(p.dtype)) t = from_memory(p.dtype, t);
  e.stage.loads.push_back(in.slot);
  define(e, id, axes, t, in.dtype);
  if (in.mask == kNone) make_available(e, in.slot, in.index, e.stage.values[id], axes);
}

void store(Emission& e, const Instr& in) {
  const DType d = e.k.params[in.slot].dtype;
  const EmittedValue v = arg(e, in, 0);
  const bool as_rounded = is_narrow_float(d) && !v.rounded.empty() && v.rounded_to == d;
  const std::string computed = full(v, compute_dtype(d));
  if (e.role.operand_of)
    return as_rounded ? store_operand(e, v, v.rounded, d, d) : store_operand(e, v, computed, compute_dtype(d), d);
  const Axes own = axes_of(e.at, in.index);
  Axes axes = own | mask_axes(e, in) | v.axes;
  if (e.stage.in_row) axes |= kR;
  if (e.stage.in_row && !(own & kR)) throw Declined("triton: a row stores to one element");
  const Destination to{"p" + num(in.slot) + offset(e, in.index, own, axes), mask(e, in, axes), axes};
  std::erase_if(e.available, [&](const Available& a) { return a.slot == in.slot; });
  std::string value = as_rounded && in.mode == StoreMode::kSet ? v.rounded : computed;
  if (is_eight_bit_float(d)) {
    if (in.mode != StoreMode::kSet) throw Declined("triton: sums of 8-bit floats");
    if (v.literal) value = scalar_tensor(value, DType::kF32);
    if (!as_rounded) value = to_memory(d, value);
  }
  if (in.mode == StoreMode::kSet) {
    stage_line(e, "tl.store(" + to.address + ", " + value + to.tail());
    if (in.mask == kNone && !v.literal) make_available(e, in.slot, in.index, v, axes);
  } else if (e.stage.stage->ordered) {
    store_atomically(e, in, d, to, value);
  } else {
    store_combined(e, in, d, to, value);
  }
}

void load_scratch(Emission& e, Id id, const Instr& in) {
  for (const Available& s : e.scratch)
    if (s.slot == in.slot && s.index == in.index && s.row == e.stage.row) return set_value(e, id, s.value);
  throw Declined("triton: scratch is read at an index that was not written");
}

void store_scratch(Emission& e, const Instr& in) {
  if (e.stage.looped) throw Declined("triton: scratch of a row that is not in registers");
  e.scratch.push_back({in.slot, in.index, e.stage.row, arg(e, in, 0)});
}

}  // namespace flashover::kernel::triton
