// Which operator of the program a node comes from, once passes have taken operators apart: explain() lists what a
// kernel fuses by it.
//
// It stands in the text of the node's location, which every pass carries along: "model.py:12 in self.a <gelu.7>". The
// number is the operator's place in the program.
#pragma once
#include <string>
#include <string_view>

#include "graph/checkpoint.h"

namespace flashover::graph {

inline constexpr std::string_view kOriginMark = " <";

// Where the origin's mark begins; npos: there is none.
inline size_t origin_begin(const Location& location) {
  return location.text.ends_with('>') ? location.text.rfind(kOriginMark) : std::string::npos;
}

inline std::string without_origin(const Location& location) {
  return str({location.text.substr(0, origin_begin(location)), location.checkpoint, location.selection});
}

struct Origin {
  int32_t number = -1;  // -1: nothing is known
  std::string name;     // "gelu"
};
inline Origin origin_of(const Location& location) {
  const size_t begin = origin_begin(location);
  if (begin == std::string::npos) return {};
  std::string_view mark = std::string_view(location.text).substr(begin + kOriginMark.size());
  mark.remove_suffix(1);
  const size_t dot = mark.rfind('.');
  if (dot == std::string_view::npos) return {};
  int32_t number = 0;
  for (char c : mark.substr(dot + 1)) {
    if (c < '0' || c > '9' || number > 100'000'000) return {};
    number = number * 10 + (c - '0');
  }
  return {number, std::string(mark.substr(0, dot))};
}

// "aten.add.Tensor" -> "add"; what is not ATen's keeps its namespace.
inline std::string short_name(std::string_view op) {
  const size_t first = op.find('.'), last = op.rfind('.');
  if (first == std::string_view::npos) return std::string(op);
  const std::string_view space = op.substr(0, first);
  if (space == "prim") return std::string(op.substr(first + 1));
  const std::string_view name = last > first ? op.substr(first + 1, last - first - 1) : op.substr(first + 1);
  return space == "aten" ? std::string(name) : std::string(op.substr(0, last));
}

// Each node's location says that the node comes from itself. Views have no origin: no data moves.
inline Graph with_origins(Graph g) {
  std::vector<Location> locations;
  for (Node& n : g.nodes) {
    Location where = n.location >= 0 ? g.facts.locations[static_cast<size_t>(n.location)] : Location{};
    if (!n.op->is_aten_view && n.op->kind != ops::OpKind::kView)
      where.text += std::string(kOriginMark) + short_name(n.op->name) + "." + std::to_string(locations.size()) + ">";
    n.location = static_cast<int32_t>(locations.size());
    locations.push_back(std::move(where));
  }
  g.facts.locations = std::move(locations);
  return g;
}

}  // namespace flashover::graph
