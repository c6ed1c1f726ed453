// nn.TransformerEncoderLayer's and nn.MultiheadAttention's fast paths, one operator each in eager, become the products,
// norms and attention that they compute, on the CPU: those are packed, and fused with what is around them.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

Graph expand_encoder_layers(Graph g);

}  // namespace flashover::graph
