// Addends of many addends: what passes over gradients look for.
#pragma once
#include <vector>

#include "graph/graph.h"

namespace flashover::graph {

class Addends {
 public:
  explicit Addends(const Graph& g);                           // which must live as long
  int32_t producer(ValueId v) const { return producer_[v]; }  // a node; -1: an input
  int32_t uses(ValueId v) const { return uses_[v]; }
  // A sum of two matrices of floating-point numbers that is no addend of another sum. (Asked from the last node to the
  // first, each root's addends looked up.)
  bool is_root(size_t node) const { return !within_[node] && is_sum(g_.nodes[node]); }
  // What a root adds up: values of its type, behind sums of this type that nothing else reads.
  std::vector<ValueId> addends(size_t root);

  static bool same(const TensorType& a, const TensorType& b);  // dtype, device and sizes

 private:
  bool is_sum(const Node& n) const;
  void collect(ValueId v, const TensorType& type, std::vector<ValueId>& found);

  const Graph& g_;
  std::vector<int32_t> producer_, uses_;
  std::vector<bool> within_;  // a larger sum
};

}  // namespace flashover::graph
