// Interval arithmetic, one instruction after the other.
#include "kernel/ranges.h"

#include <algorithm>

namespace flashover::kernel {
namespace {

using loops::Instr;
using loops::kNone;
using loops::Op;

// Ranges of operands fit in 32 bits, so none of this overflows.
IntRange product(IntRange x, IntRange y) {
  const auto [lo, hi] = std::minmax({x.lo * y.lo, x.lo * y.hi, x.hi * y.lo, x.hi * y.hi});
  return {lo, hi};
}

std::optional<IntRange> of_dtype(DType d) {
  if (d == DType::kBool) return IntRange{0, 1};
  if (d == DType::kI32) return IntRange{INT32_MIN, INT32_MAX};
  if (is_integral(d) && info(d).bytes < 4) return IntRange{INT16_MIN, UINT16_MAX};
  return std::nullopt;
}

using Operands = std::array<std::optional<IntRange>, 3>;

std::optional<IntRange> result(const loops::Stage& stage, const Instr& in, const Operands& operands) {
  const auto& [x, y, z] = operands;
  switch (in.op) {
    case Op::k_const:
      return IntRange{in.integer, in.integer};
    case Op::k_index:
      return IntRange{in.index.range().lo, in.index.range().hi};
    case Op::k_convert:
      return of_dtype(stage.body[in.args[0]].dtype);
    case Op::k_neg:
      return x ? std::optional(IntRange{-x->hi, -x->lo}) : std::nullopt;
    case Op::k_where:
      return y && z ? std::optional(IntRange{std::min(y->lo, z->lo), std::max(y->hi, z->hi)}) : std::nullopt;
    default:
      break;
  }
  if (!x || !y) return std::nullopt;
  switch (in.op) {
    case Op::k_add:
      return IntRange{x->lo + y->lo, x->hi + y->hi};
    case Op::k_sub:
      return IntRange{x->lo - y->hi, x->hi - y->lo};
    case Op::k_mul:
      return product(*x, *y);
    case Op::k_minimum:
      return IntRange{std::min(x->lo, y->lo), std::min(x->hi, y->hi)};
    case Op::k_maximum:
      return IntRange{std::max(x->lo, y->lo), std::max(x->hi, y->hi)};
    default:
      return std::nullopt;
  }
}

}  // namespace

NarrowRanges narrow_ranges(const loops::Stage& stage) {
  NarrowRanges ranges(stage.body.size());
  for (size_t i = 0; i < stage.body.size(); ++i) {
    const Instr& in = stage.body[i];
    if (in.dtype != DType::kI64) continue;
    Operands operands;
    for (size_t a = 0; a < in.args.size(); ++a)
      if (in.args[a] != kNone) operands[a] = ranges[in.args[a]];
    const std::optional<IntRange> r = result(stage, in, operands);
    if (r && r->lo >= INT32_MIN && r->hi <= INT32_MAX) ranges[i] = r;
  }
  return ranges;
}

}  // namespace flashover::kernel
