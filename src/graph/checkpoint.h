// Nodes in a checkpoint (torch.utils.checkpoint): the backward computes their values again.
//
// They are told by their location, which every pass carries along: "model.py:12 [checkpoint 3]". Where the program
// selects what a checkpoint keeps, the mark says so: "[checkpoint 3 save]".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace flashover::graph {

inline constexpr std::string_view kCheckpointMark = " [checkpoint ";

// What becomes of a result in a checkpoint: it is made again; it is kept where that is better; it is kept.
enum class Selection : uint8_t { kAgain, kPreferSave, kSave };
inline constexpr std::string_view kSelectionMarks[] = {"]", " prefer save]", " save]"};

inline std::string checkpoint_mark(int32_t number) {
  return std::string(kCheckpointMark) + std::to_string(number) + "]";
}

inline void select(std::string& location, Selection s) {  // one that ends in a mark
  if (location.find(kCheckpointMark) == std::string::npos || !location.ends_with(']')) return;
  location.pop_back();
  location += kSelectionMarks[static_cast<size_t>(s)];
}
inline Selection selection_of(std::string_view location) {
  for (Selection s : {Selection::kPreferSave, Selection::kSave})
    if (location.ends_with(kSelectionMarks[static_cast<size_t>(s)])) return s;
  return Selection::kAgain;
}

inline int32_t checkpoint_of(std::string_view location) {  // -1: in none
  const size_t at = location.rfind(kCheckpointMark);
  if (at == std::string_view::npos || location.back() != ']') return -1;
  const size_t end = kSelectionMarks[static_cast<size_t>(selection_of(location))].size();
  location = location.substr(at + kCheckpointMark.size());
  if (location.size() <= end) return -1;
  int32_t number = 0;
  for (char c : location.substr(0, location.size() - end)) {
    if (c < '0' || c > '9' || number > 100'000'000) return -1;
    number = number * 10 + (c - '0');
  }
  return number;
}
inline int32_t checkpoint_of(const Graph& g, const Node& n) {
  return n.location < 0 ? -1 : checkpoint_of(g.facts.locations[static_cast<size_t>(n.location)]);
}

}  // namespace flashover::graph
