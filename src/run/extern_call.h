// Calls of operators that the plan leaves to torch.
//
//   In        a call made ready (call.h), a run
//   Out       its results where the plan stores them: in the frame, in memory that exists already, among the frozen
//   Promises  what the plan counts on: results have the planned dtype, sizes and strides, and memory that nothing else
//             sees; an operator that keeps a tensor of the arena gets the contents for itself
//   Declines  results that are not what the plan says (Mismatch)
#pragma once
#include "run/walk.h"

namespace flashover::run {

void call_operator(const ExternCall& c, Run& run);

// Whether a call draws no random numbers, by its constant arguments: attention does when it drops something out.
bool draws_nothing(const ExternCall& c);

}  // namespace flashover::run
