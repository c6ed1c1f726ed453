// Loads and stores of parameters and scratch. A value that was loaded or stored stays in its register: later loads at
// the same index are that value.
#pragma once
#include "kernel/triton/emission.h"

namespace flashover::kernel::triton {

void load(Emission& e, loops::Id id, const loops::Instr& in);
// Throws Declined for atomics that the GPU does not have, and for combining with 8-bit floats.
void store(Emission& e, const loops::Instr& in);
// Scratch is a register; throws Declined where it would have to be memory.
void load_scratch(Emission& e, loops::Id id, const loops::Instr& in);
void store_scratch(Emission& e, const loops::Instr& in);

}  // namespace flashover::kernel::triton
