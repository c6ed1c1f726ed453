// Prims between a number on the CPU and tensors on the plan's CUDA device run on the device, and so do those between
// numbers that only prims read; the rules of single prims do not say so. Nothing changes for a plan on the CPU.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

// Last of all passes: lowering makes a kernel of what lives on the plan's device, and of nothing else.
Graph assign_devices(Graph g, Device device);

}  // namespace flashover::graph
