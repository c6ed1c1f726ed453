// Operands where their operator computes: a CPU tensor that an operator on a CUDA device reads (eager lets indices live
// on the CPU) is copied there first, since decompositions and kernels know one device. 0-d CPU tensors are numbers and
// stay.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

Graph bring_operands(Graph g);

}  // namespace flashover::graph
