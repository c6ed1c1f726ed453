// Which devices a graph's values live on.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

bool uses_cuda(const Graph& g);  // any value on a CUDA device

// The CUDA device that a graph's tensors are on; the CPU if none is. Throws Declined for two of them.
Device device_of(const Graph& g);

}  // namespace flashover::graph
