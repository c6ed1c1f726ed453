#pragma once
#include "graph/graph.h"

namespace flashover::loops {
// Rewrites prims that are more than one loop nest, or whose body would be too long, into simpler prims: var into two sums,
// large pooling windows into one window per dim.
graph::Graph expand(const graph::Graph& core);
}  // namespace flashover::loops
