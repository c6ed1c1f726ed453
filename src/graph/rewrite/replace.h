// "Use b instead of a", collected by a rewrite that walks the nodes in order.
#pragma once
#include <vector>

#include "graph/graph.h"

namespace flashover::graph {

class Replacement {
 public:
  explicit Replacement(size_t values) : to_(values, kNoValue) {}
  void set(ValueId from, ValueId to) {
    if (static_cast<size_t>(from) >= to_.size()) to_.resize(from + 1, kNoValue);
    to_[from] = resolve(to);
  }
  ValueId resolve(ValueId v) const {
    while (v != kNoValue && static_cast<size_t>(v) < to_.size() && to_[v] != kNoValue) v = to_[v];
    return v;
  }
  void apply(std::vector<Arg>& args) const {
    for (Arg& a : args) {
      if (auto* r = std::get_if<Ref>(&a)) r->id = resolve(r->id);
      if (auto* l = std::get_if<RefList>(&a))
        for (Ref& r : *l) r.id = resolve(r.id);
    }
  }
  void apply(Node& n) const { apply(n.args); }
  void apply_results(Graph& g) const {
    for (Output& o : g.outputs) o.value = resolve(o.value);
    for (Mutation& m : g.mutations) m.value = resolve(m.value);
  }

 private:
  std::vector<ValueId> to_;
};

}  // namespace flashover::graph
