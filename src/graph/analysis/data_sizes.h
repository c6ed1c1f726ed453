// Sizes that follow from data: which nodes find them, and which depend on them.
//
// A data-sized operator (ops::OpRow::data_sized) defines the symbols that its results' sizes are; an argument or a
// type with such a symbol in it is a dependence that no operand shows.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace flashover::graph {

// By node: the nodes that found the sizes which it depends on, in whatever it reads, ascending. Empty: there are no such
// sizes.
std::vector<std::vector<int32_t>> data_sizes_before(const Graph& g);

// Symbols of such sizes that some node or input is described by and no input's size is; a value whose size it is, and
// kNoValue, of nodes that find them in `from`.
std::vector<std::pair<sym::Expr, ValueId>> untold_data_sizes(const Graph& g, const Graph& from);

// Nodes behind those that find their sizes, in their order otherwise. (Passes put nodes where their operands are.)
Graph behind_data_sizes(Graph g);

}  // namespace flashover::graph
