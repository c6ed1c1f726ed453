// ATen's attention on the CPU becomes the hand-written operator (run/cpu/attention.h) where that is the faster one.
#pragma once
#include "graph/graph.h"
#include "graph/providers.h"

namespace flashover::graph {

// After fold: masks that change nothing are gone then, and causal ones are a flag.
Graph select_attention(Graph g, const Providers& providers);

}  // namespace flashover::graph
