// Reductions and scans along the axis r: of a whole row at once, or one accumulator per element of the tile over
// chunks, reduced at the end.
#pragma once
#include "kernel/triton/emission.h"

namespace flashover::kernel::triton {

void reduce(Emission& e, const loops::Instr& in);
void scan(Emission& e, loops::Id id, const loops::Instr& in);
void read_accumulator(Emission& e, loops::Id id, const loops::Instr& in);

}  // namespace flashover::kernel::triton
