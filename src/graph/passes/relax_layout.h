// Strides of values, after decompose: what eager would use is kept for extern operators and outputs; between prims the
// layout follows the operands (channels-last from convolution to convolution), and copies that only restored eager's
// layout vanish.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

Graph relax_layout(Graph g);

}  // namespace flashover::graph
