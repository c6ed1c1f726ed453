// Reductions down the columns of a large matrix (kOuter), by blocks of rows. One block of columns after the other would
// read a little of every row, again and again, and memory answers whole pages. So a few rows at a time are read from
// end to end; the accumulators of all columns stand in an array meanwhile.
#pragma once
#include "kernel/cpp/emission.h"

namespace flashover::kernel::cpp {

// Whether the kernel is such a reduction, large enough that it pays.
bool is_row_blocked(const Emission& e);
// The whole body of the kernel.
void row_blocked_reduction(Emission& e);

}  // namespace flashover::kernel::cpp
