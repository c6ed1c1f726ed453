// Making graphs, and what is asked of a whole one.
#include "graph/graph.h"

#include <algorithm>
#include <unordered_set>

namespace flashover::graph {

ValueId Graph::add_value(TensorType type, int32_t storage) {
  values.push_back({std::move(type), storage});
  return static_cast<ValueId>(values.size() - 1);
}

ValueId Graph::add_input(TensorType type, InputKind kind, std::string name, int32_t storage) {
  const ValueId v = add_value(std::move(type), storage);
  inputs.push_back({.value = v, .kind = kind, .name = std::move(name)});
  return v;
}

Node& Graph::add_node(const ops::OpRow* op, std::vector<Arg> args, std::vector<TensorType> outs, int32_t location) {
  Node node{.op = op, .args = std::move(args), .location = location};
  for (TensorType& t : outs) node.outs.push_back(add_value(std::move(t)));
  return nodes.emplace_back(std::move(node));
}

bool writes_an_input(const Graph& g) {
  std::unordered_set<int32_t> given = {-1};
  for (const Input& i : g.inputs) given.insert(g.values[i.value].storage);
  const bool anywhere =
      std::any_of(g.inputs.begin(), g.inputs.end(), [&](const Input& i) { return g.values[i.value].storage < 0; });
  for (const Node& n : g.nodes)
    for (size_t a = 0; a < n.args.size() && a < 32; ++a) {
      if (!(n.op->mutates >> a & 1)) continue;
      bool hit = false;
      for_each_ref(n.args[a], [&](ValueId v) { hit |= anywhere || given.count(g.values[v].storage) != 0; });
      if (hit) return true;
    }
  return false;
}

bool repeatable(const Graph& g) {
  return !writes_an_input(g) && std::none_of(g.nodes.begin(), g.nodes.end(), [](const Node& n) {
    return n.op->nondeterministic || (n.op->effectful && !n.op->check);
  });
}

}  // namespace flashover::graph
