// Equal nodes (operator, arguments, result types) become one. Not for random operators and those with effects, nor for
// uninitialised memory. Functional forms only: there a value never changes.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

Graph cse(Graph g);

}  // namespace flashover::graph
