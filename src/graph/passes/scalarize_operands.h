// Operators beside CUDA tensors take numbers as numbers: nothing is left to compute their 0-d tensors on the CPU. Other
// constants that operators on the CPU read are made by ATen, since a plan for a GPU has no kernels there.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

// After decompose and fold: what is constant is a prim.full by then.
Graph scalarize_operands(Graph g);

}  // namespace flashover::graph
