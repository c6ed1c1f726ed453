// Integer ranges of the values of a stage: index arithmetic that provably fits in 32 bits need not be done in 64, which
// would halve the lanes of a vector and cost a GPU several instructions each.
//
//   In        the straight-line body of a stage
//   Out       for each instruction the range of its value, where it is a 64-bit integer that provably fits in 32 bits
//   Promises  an operand without a range gives a result without one: what fits was computed from what fits, so that all
//             of it may be computed in 32 bits
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "loops/loops.h"

namespace flashover::kernel {

struct IntRange {  // inclusive
  int64_t lo, hi;
  bool operator==(const IntRange&) const = default;
};
using NarrowRanges = std::vector<std::optional<IntRange>>;  // by instruction
NarrowRanges narrow_ranges(const loops::Stage& stage);

}  // namespace flashover::kernel
