// Which operators mean one computation only, so that prims give eager's very bits: those that move values, compare or
// choose among them, round once, or compute with whole numbers. With strict_numerics the others stay ATen's: sums have
// an order there, and functions an approximation.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

bool has_eagers_bits(const Graph& g, const Node& n);

}  // namespace flashover::graph
