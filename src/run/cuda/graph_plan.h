// Facts about a program's CUDA graph that hold before it is recorded.
//
//   In        a program for a CUDA device, what it was loaded with
//   Out       which inputs and outputs operators touch (kernels take new addresses at each replay; what operators read
//             and write must stay where it was), which steps run on the CPU alone, which cannot be recorded at all
//   Promises  never changes once made
//   Declines  nothing: steps that cannot be recorded are `apart`, with the reason
#pragma once
#include <cstdint>

#include <map>
#include <string>
#include <vector>

#include "run/program.h"

namespace flashover::run::cuda {

struct GraphPlan {
  std::vector<InputAddress> addresses;                  // by input
  std::vector<bool> operator_inputs, operator_outputs;  // read or written by operators, not only by kernels
  std::vector<bool> pool_outputs;                       // by output: handed out in the graph's own memory
  bool any_pool_outputs = false;
  int64_t pool_bytes = 0;               // of these
  bool draws = false;                   // operators draw random numbers on the device
  std::vector<bool> host_steps;         // that the CPU does alone
  std::vector<int32_t> slot_launch;     // by slot of the table; -1: no launch that runs
  std::map<size_t, std::string> apart;  // steps that are no part of a graph, and why
};

GraphPlan plan_graph(const Program& p, const LoadOptions& options);

}  // namespace flashover::run::cuda
