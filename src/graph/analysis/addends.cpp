// Flattens a tree of additions into its addends.
#include "graph/analysis/addends.h"

#include "ops/names.h"

namespace flashover::graph {

Addends::Addends(const Graph& g)
    : g_(g), producer_(g.values.size(), -1), uses_(g.values.size()), within_(g.nodes.size()) {
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    for (ValueId v : g.nodes[i].outs)
      if (v != kNoValue) producer_[v] = static_cast<int32_t>(i);
    for (const Arg& a : g.nodes[i].args) for_each_ref(a, [&](ValueId v) { ++uses_[v]; });
  }
  for (const Output& o : g.outputs)
    if (o.value != kNoValue) ++uses_[o.value];
  for (const Mutation& m : g.mutations) ++uses_[m.value];
}

bool Addends::is_sum(const Node& n) const {
  return n.op->prim == Prim::add && is_floating(g_.type(n.outs[0]).dtype) && g_.type(n.outs[0]).rank() == 2 &&
         std::holds_alternative<Ref>(n.args[0]) && std::holds_alternative<Ref>(n.args[1]);
}

bool Addends::same(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && a.device == b.device && same_sizes(a.sizes, b.sizes);
}

std::vector<ValueId> Addends::addends(size_t root) {
  const Node& n = g_.nodes[root];
  const TensorType& type = g_.type(n.outs[0]);
  std::vector<ValueId> found;
  for (size_t i : {size_t{0}, size_t{1}}) collect(std::get<Ref>(n.args[i]).id, type, found);
  return found;
}

void Addends::collect(ValueId v, const TensorType& type, std::vector<ValueId>& found) {
  const int32_t at = producer_[v];
  if (at < 0 || uses_[v] != 1 || !same(g_.type(v), type) || !is_sum(g_.nodes[at])) {
    found.push_back(v);
    return;
  }
  within_[at] = true;
  for (size_t i : {size_t{0}, size_t{1}}) collect(std::get<Ref>(g_.nodes[at].args[i]).id, type, found);
}

}  // namespace flashover::graph
