// A stage of a kernel: its loops as the axis r (a whole row in registers, or a loop over chunks), then its body.
#pragma once
#include "kernel/triton/emission.h"

namespace flashover::kernel::triton {

// Writes, once, that the kernels in front have ended from here on.
void wait_for_kernels_before(Emission& e);
// Throws Declined for loops that are no row.
void stage(Emission& e, size_t number);

}  // namespace flashover::kernel::triton
