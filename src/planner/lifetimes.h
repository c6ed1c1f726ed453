// From which step to which each tensor's memory is needed.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace flashover::planner {

struct Lifetime {
  int32_t first = -1, last = -1;  // steps, inclusive; -1: never touched. A result lives one step longer than all
};
// By tensor; views are counted with the tensor whose memory they lie in. Without the frozen steps.
std::vector<Lifetime> lifetimes(const plan::Plan& p);

}  // namespace flashover::planner
