// Strides are found by going through an expression once; divisions keep theirs where vectors do not straddle blocks.
#include "kernel/cpp/lanes.h"

#include <algorithm>
#include <vector>

namespace flashover::kernel::cpp {
namespace {

using sym::Expr;

// Is `e` a multiple of the vector length wherever a vector starts?
bool aligned(Expr e, Expr lane) {
  constexpr int64_t kWidth = 16;  // also right for fewer lanes
  static const Expr block = sym::var("lane_block", {0, int64_t{1} << 40}, 0);
  Expr at = sym::substitute(e, [&](Expr v) -> std::optional<Expr> {
    if (v == lane) return block * Expr(kWidth);
    return std::nullopt;
  });
  return sym::known_divisible(at, kWidth);
}

LaneStep step_of_sum(Expr e, const LaneLoop& lanes, const VariesTest& varies) {
  LaneStep r;
  for (Expr t : e.operands()) {
    LaneStep x = lane_step(t, lanes, varies);
    if (x.kind == LaneStep::kVarying) return x;
    r.stride += x.stride;
  }
  if (r.stride != 0) r.kind = LaneStep::kStride;
  return r;
}

LaneStep step_of_product(Expr e, const LaneLoop& lanes, const VariesTest& varies) {
  LaneStep r;
  int64_t factor = 1;
  bool constant = true;
  for (Expr t : e.operands()) {
    LaneStep x = lane_step(t, lanes, varies);
    if (x.uniform()) {
      constant &= t.is_const();
      if (t.is_const()) factor *= t.value();
      continue;
    }
    if (x.kind == LaneStep::kVarying || !r.uniform()) return {LaneStep::kVarying, 0};
    r = x;
  }
  if (r.uniform()) return r;
  if (!constant) return {LaneStep::kVarying, 0};
  r.stride *= factor;
  return r;
}

LaneStep step_of_division(Expr e, const LaneLoop& lanes, const VariesTest& varies) {
  const Expr numerator = e.operands()[0], by = e.operands()[1];
  const LaneStep x = lane_step(numerator, lanes, varies), y = lane_step(by, lanes, varies);
  if (x.uniform() && y.uniform()) return {};
  // Whole vectors stay within one block of the divisor.
  if (x.contiguous() && by.is_const() && by.value() % lanes.width == 0 && by.value() > 0 &&
      aligned(numerator, lanes.variable))
    return e.kind() == sym::Kind::kFloorDiv ? LaneStep{} : x;
  return {LaneStep::kVarying, 0};
}

}  // namespace

LaneStep lane_step(Expr e, const LaneLoop& lanes, const VariesTest& varies) {
  switch (e.kind()) {
    case sym::Kind::kConst:
      return {};
    case sym::Kind::kVar:
      if (e == lanes.variable) return {LaneStep::kStride, 1};
      return {varies(e) ? LaneStep::kVarying : LaneStep::kUniform, 0};
    case sym::Kind::kAdd:
      return step_of_sum(e, lanes, varies);
    case sym::Kind::kMul:
      return step_of_product(e, lanes, varies);
    case sym::Kind::kFloorDiv:
    case sym::Kind::kMod:
      return step_of_division(e, lanes, varies);
    default:
      for (Expr t : e.operands())
        if (!lane_step(t, lanes, varies).uniform()) return {LaneStep::kVarying, 0};
      return {};
  }
}

LaneStep lane_step(Expr e, const LaneLoop& lanes) {
  return lane_step(e, lanes, [](Expr) { return false; });
}

std::optional<Expr> symbolic_step(Expr e, const LaneLoop& lanes, const VariesTest& varies) {
  if (e == lanes.variable) return Expr(1);
  if (lane_step(e, lanes, varies).uniform()) return Expr(0);
  if (e.kind() != sym::Kind::kAdd && e.kind() != sym::Kind::kMul) return std::nullopt;
  const bool product = e.kind() == sym::Kind::kMul;
  std::optional<Expr> step;
  Expr factors = 1;
  for (Expr t : e.operands()) {
    if (lane_step(t, lanes, varies).uniform()) {
      if (product) factors = factors * t;
      continue;
    }
    if (step) return std::nullopt;
    step = symbolic_step(t, lanes, varies);
    if (!step) return std::nullopt;
  }
  return *step * factors;
}

bool tests_whole_vectors(const loops::Instr& in, const LaneLoop& lanes) {
  if (!lane_step(in.index, lanes).contiguous()) return false;
  std::vector<Expr> vars;
  for (Expr e : {in.index, in.lo, in.hi}) sym::collect_vars(e, vars);
  for (Expr v : vars)
    if (v.name().starts_with('t')) return false;  // defined by k_indirect
  return lane_step(in.lo, lanes).uniform() && lane_step(in.hi, lanes).uniform() &&
         aligned(in.index - in.lo, lanes.variable) && aligned(in.index - in.hi, lanes.variable);
}

}  // namespace flashover::kernel::cpp
