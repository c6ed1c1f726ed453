// Estimates the memory that eager would take: the yardstick for a plan's.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace flashover::graph {

// Of a graph in form kTraced: the most bytes on CUDA devices, beside the inputs, that are alive at one time where each
// tensor goes with its last use. (So it is no more than eager takes, where variables live on.) Autocast's copies of
// lasting inputs stay to the end. 0 where sizes are unknown.
struct EagerMemory {
  int64_t bytes = 0;
  int64_t working = 0;  // with what operators take for themselves while they run (working_bytes)
};
EagerMemory eager_memory(const Graph& traced);

// The bytes that cuDNN takes beside operands and result of a convolution (0: little, or not known). Its kernels for
// groups of 16-bit numbers read channels last: what lies otherwise is copied, operand and result. (Measured on an
// H200.)
int64_t working_bytes(std::string_view op, const std::vector<Arg>& args, const TensorType& input,
                      const TensorType& weight, const TensorType& out);

}  // namespace flashover::graph
