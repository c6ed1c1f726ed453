// One instruction of a stage's body as C++: every dtype, single or over the lanes.
#pragma once
#include "kernel/cpp/emission.h"

namespace flashover::kernel::cpp {

// Throws Declined for the CUDA generator's random numbers.
void instruction(Emission& e, Scope& s, loops::Id i);
// 1 / value of a row's divisor, written beside the value: is there a division by `i` that uses it?
bool is_row_divisor(const Scope& s, loops::Id i);

}  // namespace flashover::kernel::cpp
