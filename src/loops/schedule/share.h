// Kernels that differ only in sizes become one kernel that takes the sizes as arguments: compile time is paid per
// kernel.
#pragma once
#include "loops/schedule/schedule.h"

namespace flashover::loops {

// Changes s.kernels and the launch steps (kernel, sizes). What speed depends on stays written in: strides of lanes,
// loops inside rows, range tests. Kernels of the frozen part, which run once, give up their inner sizes too.
void share_kernels(Schedule& s);

}  // namespace flashover::loops
