// Products, convolutions and attention of 16-bit floats on a CPU without instructions for them, where the libraries
// take up to a hundred times as long as for f32: operands are converted, computed with in f32, and results are rounded
// once, which is at least as exact. What stays as it is: products of few rows with a matrix that lies as a linear's
// weight does, which only read memory; weights whose copies would take more than Providers::pack_budget.
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

// Before convolution and linear, which choose among libraries for f32 then.
Graph widen_products(Graph g, const target::Providers& providers);

}  // namespace flashover::graph
