// What depends on sizes that are symbols.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

bool is_symbolic(const TensorType& t);
// Arguments, or results' types: what such a node computes is not the same for every call, whatever its operands are.
bool is_symbolic(const Graph& g, const Node& n);

}  // namespace flashover::graph
