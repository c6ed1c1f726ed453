// The outer loops of a kernel in its body function: linear indices [begin, end) as loop variables, the vectors of a
// block of the last loop (kOuter), tiles that are transposed in registers.
#pragma once
#include <functional>

#include "kernel/cpp/emission.h"

namespace flashover::kernel::cpp {

// All stages, for each linear index.
void each_linear_index(Emission& e);
// What `stages` writes, for the vectors of one block of the last outer loop.
void lanes_of_block(Emission& e, const std::function<void(const LaneRun& run)>& stages);

}  // namespace flashover::kernel::cpp
