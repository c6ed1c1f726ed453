// Marks from the results backwards, then copies what is marked.
#include "graph/passes/dce.h"

#include <algorithm>

namespace flashover::graph {
namespace {

bool has_effect(const Node& n) {
  if (n.op->once()) return true;
  return std::all_of(n.outs.begin(), n.outs.end(), [](ValueId v) { return v == kNoValue; });
}

}  // namespace

std::vector<bool> live_nodes(const Graph& g) {
  std::vector<bool> live(g.values.size());
  for (const Output& o : g.outputs)
    if (o.value != kNoValue) live[o.value] = true;
  for (const Mutation& m : g.mutations) live[m.value] = true;
  std::vector<bool> keep(g.nodes.size());
  for (size_t i = g.nodes.size(); i-- > 0;) {
    const Node& n = g.nodes[i];
    keep[i] =
        has_effect(n) || std::any_of(n.outs.begin(), n.outs.end(), [&](ValueId v) { return v != kNoValue && live[v]; });
    if (!keep[i]) continue;
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { live[v] = true; });
  }
  return keep;
}

Graph dce(Graph g) {
  const std::vector<bool> keep = live_nodes(g);
  std::vector<ValueId> number(g.values.size(), kNoValue);
  std::vector<Value> values;
  auto define = [&](ValueId& v) {
    if (v == kNoValue) return;
    number[v] = static_cast<ValueId>(values.size());
    values.push_back(std::move(g.values[v]));
    v = number[v];
  };
  for (Input& i : g.inputs) define(i.value);
  size_t kept = 0;
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    if (!keep[i]) continue;
    Node& n = g.nodes[i];
    for (Arg& a : n.args) {
      if (auto* r = std::get_if<Ref>(&a); r && r->id != kNoValue) r->id = number[r->id];
      if (auto* l = std::get_if<RefList>(&a))
        for (Ref& r : *l)
          if (r.id != kNoValue) r.id = number[r.id];
    }
    for (ValueId& v : n.outs) define(v);
    if (kept != i) g.nodes[kept] = std::move(n);
    ++kept;
  }
  g.nodes.resize(kept);
  for (Output& o : g.outputs)
    if (o.value != kNoValue) o.value = number[o.value];
  for (Mutation& m : g.mutations) m.value = number[m.value];
  g.values = std::move(values);
  return g;
}

}  // namespace flashover::graph
