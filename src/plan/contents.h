// What a plan is made of: the part that depends on weights alone, the operators that it calls.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace flashover::plan {

// What calls read of it: the tensors of storage kFrozen, without views, that steps use or outputs are. Ascending.
std::vector<TensorId> kept_frozen(const Plan& p);

// The names of the operators that its steps call, each once, in alphabetical order.
std::vector<std::string> operators_called(const Plan& p);

// A plan for a CUDA device, for another one of the same kind: whatever is on the plan's device.
void use_cuda_device(Plan& p, int8_t index);

}  // namespace flashover::plan
