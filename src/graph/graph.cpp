#include "graph/graph.h"

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

Node& Graph::add_node(const ops::Op* op, std::vector<Arg> args, std::vector<TensorType> outs, int32_t location) {
  Node node{.op = op, .args = std::move(args), .location = location};
  for (TensorType& t : outs) node.outs.push_back(add_value(std::move(t)));
  return nodes.emplace_back(std::move(node));
}

}  // namespace flashover::graph
