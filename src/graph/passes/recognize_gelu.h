// GELU as models write it out, by the tanh formula or with erf, becomes aten.gelu: libraries compute that with the
// product before it. Before linear and convolution.
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

Graph recognize_gelu(Graph g, const target::Providers& providers);

}  // namespace flashover::graph
