// Whether a kernel may write one parameter over another.
#pragma once
#include "loops/loops.h"

namespace flashover::planner {

// Whether parameter `out` may lie over parameter `in`: both are touched at one address only, and nothing reads `in`
// after `out` was stored there.
bool overlay(const loops::Kernel& k, int32_t in, int32_t out);

}  // namespace flashover::planner
