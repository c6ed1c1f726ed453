// How index expressions move over the lanes of a vector.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "loops/loops.h"

namespace flashover::kernel::cpp {

struct LaneStep {
  enum Kind {
    kUniform,  // the same in every lane
    kStride,   // `stride` more in each lane than in the one before
    kVarying,
  } kind = kUniform;
  int64_t stride = 0;
  bool uniform() const { return kind == kUniform; }
  bool contiguous() const { return kind == kStride && stride == 1; }
};

// The variable that runs over the lanes, and how many lanes there are.
struct LaneLoop {
  sym::Expr variable;
  int width = 1;
};

// Does a variable other than that of the lanes differ from lane to lane? (k_indirect defines such.)
using VariesTest = std::function<bool(sym::Expr variable)>;
LaneStep lane_step(sym::Expr e, const LaneLoop& lanes, const VariesTest& varies);
LaneStep lane_step(sym::Expr e, const LaneLoop& lanes);  // no other variable does
// How much more `e` is in each lane than in the one before, where that is a product of sizes; kStride has numbers.
std::optional<sym::Expr> symbolic_step(sym::Expr e, const LaneLoop& lanes, const VariesTest& varies);

// Is a range test (k_in_range) true or false for all lanes of a vector alike? (cat and rotary halves at round sizes)
bool tests_whole_vectors(const loops::Instr& in, const LaneLoop& lanes);

}  // namespace flashover::kernel::cpp
