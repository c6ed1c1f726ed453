// ATen's attention on the CPU becomes the hand-written operator (cpu_kernels/attention.h) where that is the faster one.
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

// After fold: masks that change nothing are gone then, and causal ones are a flag.
Graph select_attention(Graph g, const target::Providers& providers);

}  // namespace flashover::graph
