// Core graphs whose results depend on computed values being equal to the bit.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

// Sets `exact` where two computed floating-point values are compared (x == x.amax(): a maximum's gradient; x >= its
// largest) and functions lie behind them that kernels approximate where digits do not matter: what one kernel stored
// and another one computes again must not differ.
Graph require_exact(Graph g);

}  // namespace flashover::graph
