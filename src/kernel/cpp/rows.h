// Folds down the rows of a large matrix (kOuter): one block of columns after the other would read a little of every row,
// again and again, and memory answers whole pages. So a few rows at a time are read from end to end; the accumulators
// of all columns wait in an array meanwhile.
#pragma once
#include "kernel/cpp/emission.h"

namespace flashover::kernel::cpp {

// Is the kernel such a fold, large enough that it pays?
bool reads_few_rows(const Emission& e);
// The whole body of the kernel.
void all_columns_by_few_rows(Emission& e);

}  // namespace flashover::kernel::cpp
