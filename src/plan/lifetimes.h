// From which step to which each tensor's memory is needed.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace flashover::plan {

struct Lifetime {
  int32_t first = -1, last = -1;  // steps, inclusive; -1: never touched. A result lives one step longer than all
};
// A collective, which reads and writes while the steps behind it run, until somebody waits for its result.
bool begins_collective(std::string_view op);
// Live ranges by tensor; a view counts with the tensor in whose memory it is. Frozen steps are left out.
std::vector<Lifetime> lifetimes(const Plan& p);
// The same over the frozen steps alone.
std::vector<Lifetime> frozen_lifetimes(const Plan& p);

}  // namespace flashover::plan
