// Products with softmax's weights that stay products (training; machines without the instructions for attention) run
// without denormal numbers, with which arithmetic takes ten to a hundred times as long: finite masks make weights of
// 1e-44. A softmax whose results only meet products makes none.
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

// After fuse_attention, which takes the products that it can; before decompose, where softmax is still whole.
Graph flush_denormals(Graph g, const target::Providers& providers);

}  // namespace flashover::graph
