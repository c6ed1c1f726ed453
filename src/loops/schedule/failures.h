// Failures at run time (an index out of range, an operator that raises) leave no trace if no input was written before
// them: the call is then repeated in eager, for its effects.
#pragma once
#include <vector>

#include "loops/loops.h"
#include "plan/plan.h"

namespace flashover::loops {

// Sets Step::foreseen and Step::bounds of a launch of k, where all its index checks are of inputs' elements, or of what
// simple arithmetic makes of them.
void foresee(const Kernel& k, const plan::Plan& p, plan::Step& launch);
// The same of calls of index_copy and index_put.
void foresee(const plan::Plan& p, plan::Step& call);

// Puts steps that write inputs behind those that may raise in a way that is not foreseen, where these do not need them.
void write_late(plan::Plan& p, const std::vector<Kernel>& kernels);

}  // namespace flashover::loops
