// Faults for the tests of what finds faults: a compiler that makes wrong plans.
//
//   In        a plan; $FLASHOVER_TEST_EDIT_PLAN, lines of "REGEX<tab>TEXT": each line of the plan's text that has such a
//             part gets TEXT in its place ($1: as in std::regex_replace). TEXT "-" leaves the line out
//   Out       the plan that the text then says; unverified: it may compute anything, or die
//   Promises  nothing is changed, and nothing but one look at the environment is done, without the variable
#pragma once
#include "plan/plan.h"

namespace flashover::compile {

bool edits_plans();
plan::Plan edited(plan::Plan p);

}  // namespace flashover::compile
