// Inference batch norms are folded into the convolutions before them, which are computed with weights and biases of
// their own in the frozen part.
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

// Before convolution and cuda_library, which pack the weight that comes out of this; before decompose, where a batch
// norm is still whole. On a CPU the new weights take no more than Providers::pack_budget.
Graph fold_batch_norm(Graph g, const target::Providers& providers);

}  // namespace flashover::graph
