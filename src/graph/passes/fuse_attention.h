// Attention that a program writes out (softmax(q k^T * scale + biases) v as two bmm, with all views, casts and numbers
// between them) becomes the hand-written operator on the CPU (cpu_kernels/attention.h), where the machine has the
// instructions.
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

// Before decompose: softmax is still whole there.
Graph fuse_attention(Graph g, const target::Providers& providers);

}  // namespace flashover::graph
