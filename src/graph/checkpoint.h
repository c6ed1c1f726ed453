// Nodes in a checkpoint (torch.utils.checkpoint): the backward computes their values again. What tells them is part of
// their location; the text form writes it behind that: "model.py:12 [checkpoint 3]". Where the program selects what a
// checkpoint keeps, it says so: "[checkpoint 3 save]".
#pragma once
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace flashover::graph {

inline int32_t checkpoint_of(const Graph& g, const Node& n) {  // -1: in none
  return n.location < 0 ? -1 : g.facts.locations[static_cast<size_t>(n.location)].checkpoint;
}
inline Selection selection_of(const Graph& g, const Node& n) {
  return n.location < 0 ? Selection::kAgain : g.facts.locations[static_cast<size_t>(n.location)].selection;
}

std::string str(const Location& location);
Location parse_location(std::string_view text);

}  // namespace flashover::graph
