// A stage of a kernel: its loops, each value at the depth that loops::depths() gives it, and its accumulators.
#pragma once
#include "kernel/cpp/emission.h"

namespace flashover::kernel::cpp {

// How many of the stage's points are written: those of `run` (kOuter; under kInner the stage chooses), and of its loops
// all or, with `row_block`, rows [jb, je) for accumulators that are declared outside.
void stage(Emission& e, size_t number, const LaneRun& run, bool row_block = false);

// A loop variable of rows [jb, je) of a stage that has several loops: an array, by row.
std::string row_name(size_t loop);
// The accumulators that a stage folds into, in order of its folds.
std::vector<int32_t> folded_accumulators(const loops::Stage& s);

}  // namespace flashover::kernel::cpp
