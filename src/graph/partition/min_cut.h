// Minimum cut between a source and a sink, by Dinic's algorithm.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace flashover::graph {

class MinCut {
 public:
  static constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max() / 4;
  explicit MinCut(size_t nodes) : first_(nodes, -1) {}
  void add_edge(int32_t from, int32_t to, int64_t capacity);
  // The nodes on the source's side of a cheapest cut, as close to the source as possible; total(): what it costs
  // (>= kInfinite: there is no cut).
  std::vector<bool> source_side(int32_t source, int32_t sink);
  int64_t total() const { return total_; }

 private:
  struct Edge {
    int32_t to, next;
    int64_t left;
  };
  bool levels(int32_t source, int32_t sink);
  int64_t push(int32_t source, int32_t sink);

  std::vector<int32_t> first_, level_, current_;
  std::vector<Edge> edges_;  // edge e ^ 1 is its reverse
  int64_t total_ = 0;
};

}  // namespace flashover::graph
