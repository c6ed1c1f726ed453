// Faults for the tests of what finds faults: a compiler that makes wrong plans.
//
//   In        a plan; $FLASHOVER_TEST_EDIT_PLAN, lines of "PART<tab>FROM<tab>TO": in each line of the plan's text that
//             has PART, FROM becomes TO; without FROM the line goes
//   Out       the plan that the text then says, if it verifies: it may compute anything
//   Promises  nothing is changed, and nothing but one look at the environment is done, without the variable
#pragma once
#include "plan/plan.h"

namespace flashover::compile {

bool edits_plans();
plan::Plan edited(plan::Plan p);

}  // namespace flashover::compile
