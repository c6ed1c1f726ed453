// Convolutions with weights that are known before the call: the weight is packed in the frozen part, and the
// convolution runs channels-last through oneDNN with the activation on the fly. Those whose weights change (training)
// and their gradients become flashover.convolution where target::Providers say so, or run channels last in reduced floats.
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

// Before decompose: activations are still whole there.
Graph convolution(Graph g, const target::Providers& providers);

}  // namespace flashover::graph
