// What a graph computes, counted: for people who ask whether a program is bound by arithmetic or by memory.
#pragma once
#include <cstdint>
#include <optional>

#include "graph/graph.h"

namespace flashover::graph {

// Floating-point operations of a graph in form kTraced: two for each product and sum of matrix products, convolutions
// and attention; one for each element of what other operators compute, or of what they reduce. nullopt where sizes are
// symbols.
std::optional<double> flops(const Graph& traced);

}  // namespace flashover::graph
