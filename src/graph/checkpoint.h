// Nodes in a checkpoint (torch.utils.checkpoint): the backward computes their values again.
//
// They are told by their location, which every pass carries along: "model.py:12 [checkpoint 3]".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace flashover::graph {

inline constexpr std::string_view kCheckpointMark = " [checkpoint ";

inline std::string checkpoint_mark(int32_t number) {
  return std::string(kCheckpointMark) + std::to_string(number) + "]";
}

inline int32_t checkpoint_of(std::string_view location) {  // -1: in none
  const size_t at = location.rfind(kCheckpointMark);
  if (at == std::string_view::npos || location.back() != ']') return -1;
  location = location.substr(at + kCheckpointMark.size());
  int32_t number = 0;
  for (char c : location.substr(0, location.size() - 1)) {
    if (c < '0' || c > '9' || number > 100'000'000) return -1;
    number = number * 10 + (c - '0');
  }
  return number;
}
inline int32_t checkpoint_of(const Graph& g, const Node& n) {
  return n.location < 0 ? -1 : checkpoint_of(g.locations[static_cast<size_t>(n.location)]);
}

}  // namespace flashover::graph
