// One instruction of a stage's body as Triton.
#pragma once
#include "kernel/triton/emission.h"

namespace flashover::kernel::triton {

void instruction(Emission& e, loops::Id id);

}  // namespace flashover::kernel::triton
