// What of a plan the runtime without torch (bare/) has no code for.
//
//   In        a plan for a CPU
//   Out       names of operators and the like, none: it runs without torch
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace flashover::run {

std::vector<std::string> needs_torch(const plan::Plan& p);

// Operators of torch's libraries that own kernels compute there: up to rounding, since their sums have another order.
std::vector<std::string> replaced_without_torch(const plan::Plan& p);

// The frozen call that makes a tensor in its own order (TensorType::opaque), if that is one of the hand-written
// operators (cpu_kernels/plain.h); else null.
const plan::Step* packing_of(const plan::Plan& p, plan::TensorId t);

}  // namespace flashover::run
