// Operands where their operator computes: a CPU tensor that an operator on a CUDA device reads (eager lets indices live
// on the CPU) is copied there first, since decompositions and kernels know one device. 0-d CPU tensors are numbers and
// stay.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

// After cse, so that one copy serves all readers; before all passes that look at operands.
Graph insert_device_copies(Graph g);

}  // namespace flashover::graph
