// Tensors that are unpacked from fewer bytes, as weights of 8 and 4 bits are.
#pragma once
#include <functional>
#include <vector>

#include "graph/graph.h"

namespace flashover::graph {

struct Definitions {
  std::function<const Node*(ValueId)> node;  // null: an input
  std::function<const TensorType&(ValueId)> type;
};

// Nothing but a function of single elements, or the same elements elsewhere.
bool is_unpacking(const Node& n);

// By unpacking alone, from tensors most of whose bytes are 8-bit elements and which take at most 3/4 of its bytes.
bool is_unpacked(const Definitions& d, ValueId v);

// The same, of as many elements of 8 bits as it has itself.
bool is_widened(const Definitions& d, ValueId v);
bool is_large(const TensorType& t);  // too large to be kept beside what it is unpacked from

// Of the values that are frozen those that are to be unpacked in each call all the same, with the steps on the way to
// them: large ones whose every reader runs in each call. Whoever has weights of few bits has them for the memory.
std::vector<bool> unpacked_in_each_call(const Graph& g, const std::vector<bool>& frozen);

}  // namespace flashover::graph
