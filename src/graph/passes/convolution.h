// Convolutions with weights that are known before the call: inference batch norms are folded into them, the weight is
// packed in the frozen part, and the convolution runs channels-last through oneDNN with the activation on the fly.
// Those whose weights change (training) and their gradients become flashover.convolution where Providers say so, or run
// channels last in reduced floats.
// Before decompose: batch norms and activations are still whole there.
#pragma once
#include "graph/graph.h"
#include "graph/providers.h"

namespace flashover::graph {

Graph fold_batch_norm(Graph g);
Graph convolution(Graph g, const Providers& providers);

}  // namespace flashover::graph
