// The part of a plan that depends on weights alone.
#pragma once
#include <vector>

#include "plan/plan.h"

namespace flashover::plan {

// What calls read of it: the tensors of storage kFrozen, without views, that steps use or outputs are. Ascending.
std::vector<TensorId> kept_frozen(const Plan& p);

}  // namespace flashover::plan
