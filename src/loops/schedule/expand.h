// Prims that no single loop nest computes become several, before lowering.
#pragma once
#include "graph/graph.h"
#include "loops/schedule/options.h"

namespace flashover::loops {
// Rewrites prims that are more than one loop nest, or whose body would be too long, into simpler prims: var into two
// sums, large pooling windows into one window per dim, long reductions to few elements into two steps.
graph::Graph expand(const graph::Graph& core, const ScheduleOptions& options = {});
}  // namespace flashover::loops
