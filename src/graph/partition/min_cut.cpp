// Dinic: levels by breadth first search, then blocking flows along them.
#include "graph/partition/min_cut.h"

#include <algorithm>

namespace flashover::graph {

void MinCut::add_edge(int32_t from, int32_t to, int64_t capacity) {
  edges_.push_back({to, first_[from], capacity});
  first_[from] = static_cast<int32_t>(edges_.size() - 1);
  edges_.push_back({from, first_[to], 0});
  first_[to] = static_cast<int32_t>(edges_.size() - 1);
}

bool MinCut::levels(int32_t source, int32_t sink) {
  level_.assign(first_.size(), -1);
  std::vector<int32_t> queue = {source};
  level_[source] = 0;
  for (size_t i = 0; i < queue.size(); ++i)
    for (int32_t e = first_[queue[i]]; e >= 0; e = edges_[e].next)
      if (edges_[e].left > 0 && level_[edges_[e].to] < 0) {
        level_[edges_[e].to] = level_[queue[i]] + 1;
        queue.push_back(edges_[e].to);
      }
  return level_[sink] >= 0;
}

// One augmenting path of the level graph; 0: there is none. Without recursion: graphs are as deep as programs are long.
int64_t MinCut::push(int32_t source, int32_t sink) {
  std::vector<int32_t> path;
  for (int32_t at = source;;) {
    if (at == sink) {
      int64_t flow = kInfinite;
      for (int32_t e : path) flow = std::min(flow, edges_[e].left);
      for (int32_t e : path) {
        edges_[e].left -= flow;
        edges_[e ^ 1].left += flow;
      }
      return flow;
    }
    int32_t& e = current_[at];
    while (e >= 0 && !(edges_[e].left > 0 && level_[edges_[e].to] == level_[at] + 1)) e = edges_[e].next;
    if (e >= 0) {
      path.push_back(e);
      at = edges_[e].to;
      continue;
    }
    if (at == source) return 0;
    level_[at] = -1;  // a dead end
    at = edges_[path.back() ^ 1].to;
    path.pop_back();
  }
}

std::vector<bool> MinCut::source_side(int32_t source, int32_t sink) {
  while (total_ < kInfinite && levels(source, sink)) {
    current_ = first_;
    while (total_ < kInfinite) {
      const int64_t flow = push(source, sink);
      if (flow == 0) break;
      total_ += flow;
    }
  }
  std::vector<bool> side(first_.size());
  for (size_t i = 0; i < side.size(); ++i) side[i] = level_[i] >= 0;
  return side;
}

}  // namespace flashover::graph
