// The outer points of a kernel: which of them a program computes, the grid, the masks where the tile sticks out.
#pragma once
#include "kernel/triton/emission.h"

namespace flashover::kernel::triton {

void program_points(Emission& e);

}  // namespace flashover::kernel::triton
