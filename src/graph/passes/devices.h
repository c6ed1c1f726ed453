// Operands where their operator computes: a CPU tensor that an operator on a CUDA device reads (eager lets indices live
// on the CPU) is copied there first, since decompositions and kernels know one device. 0-d CPU tensors are numbers and
// stay.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

bool uses_cuda(const Graph& g);  // any value on a CUDA device

Graph bring_operands(Graph g);

// Operators beside CUDA tensors take numbers as numbers: nothing is left to compute their 0-d tensors on the CPU. Other
// constants that operators on the CPU read are made by ATen. Last, on the core form.
Graph pass_numbers(Graph g);

}  // namespace flashover::graph
