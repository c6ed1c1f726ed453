// The hand-written operators (linear.h, attention.h) as "flashover.packed_linear.default" and so on.
#pragma once
#include <string_view>

namespace flashover::cpu {

void register_operators();  // in torch's dispatcher; once is enough

// Whether the operator of that name starts no parallel region but by share() and in_parallel() (team.h).
bool shares_by_team(std::string_view op);

}  // namespace flashover::cpu
