// How long plans take on this machine, for choices that are measured (mode="max-autotune").
#pragma once
#include <span>
#include <vector>

#include "plan/plan.h"

namespace flashover::entry {

// Seconds of one run of each, one after the other, on made-up inputs; infinite where a plan cannot be run (out of
// memory, a kernel that asks for too much). All infinite where nothing may be run now (torch records a CUDA graph).
// Leaves no trace in the random generators.
std::vector<double> measure(std::span<const plan::Plan> plans);

}  // namespace flashover::entry
