// Removes nodes whose results nothing needs, and renumbers the values that stay. Kept always: operators with effects,
// operators without results (they are there for an effect) and random ones (they move the generator, as in eager).
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

Graph dce(Graph g);
std::vector<bool> live_nodes(const Graph& g);  // which it keeps

}  // namespace flashover::graph
