// A plan as several that run one after the other, for CUDA graphs of what lies around a step that cannot be recorded.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/plan.h"

namespace flashover::plan {

struct PlanPartition {
  struct SubPlan {
    Plan plan;  // with the kernels and binaries of the whole
    // By input: one of the whole's, or -1 - number of what an earlier sub-plan passes on.
    std::vector<int32_t> inputs;
    // By output: which of the whole's it is (in the layout of its tensor; -1: none), and as what it is passed on (-1:
    // it is not).
    struct Target {
      int32_t output = -1, passed = -1;
    };
    std::vector<Target> outputs;
  };
  std::vector<SubPlan> sub_plans;
  int32_t passed = 0;  // how many tensors are passed on
};

// ends: of each sub-plan the first step after it, ascending; the last is the number of steps. An output that is an
// alias belongs to no sub-plan. Nothing when some tensor cannot be passed on.
std::optional<PlanPartition> split(const Plan& whole, const std::vector<size_t>& ends);

}  // namespace flashover::plan
