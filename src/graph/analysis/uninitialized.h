// Tensors whose memory nobody filled, as torch.empty makes them.
#pragma once
#include <vector>

#include "graph/graph.h"

namespace flashover::graph {

// Of each value: it is an empty tensor that is read only by operators that write it ("functional." ones, each on memory
// of its own). What it holds is of no account.
std::vector<bool> only_written(const Graph& g);

}  // namespace flashover::graph
