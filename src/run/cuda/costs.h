// What the stages of a launch cost on this machine, for people who look for microseconds (benchmarks/tiny_call.py).
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace flashover::run::cuda {

// Microseconds each, least of several rounds of 100 in a row: what a call of one kernel does, piece by piece, and the
// same in one go.
std::vector<std::pair<std::string, double>> launch_costs(int device);

}  // namespace flashover::run::cuda
