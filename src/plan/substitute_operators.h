// Operators of our own that take ATen's arguments and fall back on it (run/cpu/operators.cpp) take its place in a plan
// for the CPU. In the plan, not in the graph: to all passes they are ATen's.
#pragma once
#include "plan/plan.h"

namespace flashover::plan {

void substitute_operators(Plan& p);

}  // namespace flashover::plan
