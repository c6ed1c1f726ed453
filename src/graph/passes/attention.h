// Attention on the CPU by the hand-written operator (run/cpu/attention.h), where the machine has the instructions.
//
// fuse_attention finds it written out: softmax(q k^T * scale + biases) v out of two bmm, with all views, casts and
// numbers between them. Before decompose: softmax is still whole there. own_attention replaces ATen's operator. After
// fold: the masks that say nothing, or causal, are gone then.
//
// Products with softmax's weights that stay products (training; machines without the instructions) are ATen's without
// denormal numbers: finite masks make weights of 1e-44. And a softmax that only products see makes none.
#pragma once
#include "graph/graph.h"
#include "graph/providers.h"

namespace flashover::graph {

Graph fuse_attention(Graph g, const Providers& providers);
Graph own_attention(Graph g, const Providers& providers);

}  // namespace flashover::graph
