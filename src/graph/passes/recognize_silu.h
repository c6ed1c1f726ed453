// SiLU as models write it out, x * sigmoid(x), becomes aten.silu: libraries compute that with the product before it.
// Before linear and convolution.
#pragma once
#include "graph/graph.h"
#include "graph/providers.h"

namespace flashover::graph {

Graph recognize_silu(Graph g, const Providers& providers);

}  // namespace flashover::graph
