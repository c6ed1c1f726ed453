// Keys nodes by their text: operator, arguments, result types.
#include "graph/passes/cse.h"

#include <algorithm>
#include <unordered_map>

#include "graph/passes/dce.h"
#include "graph/rewrite/replace.h"
#include "ops/text.h"

namespace flashover::graph {
namespace {

std::string key_of(const Graph& g, const Node& n) {
  std::string key = n.op->name;
  for (const Arg& a : n.args) key += '\x1f' + str(a);
  for (ValueId v : n.outs) key += '\x1e' + (v == kNoValue ? std::string("_") : str(g.type(v)));
  return key;
}

}  // namespace

Graph cse(Graph g) {
  Replacement replacement(g.values.size());
  std::unordered_map<std::string, const Node*> seen;
  for (Node& n : g.nodes) {
    replacement.apply(n);
    if (n.op->once() || n.outs.empty()) continue;
    const auto [it, fresh] = seen.try_emplace(key_of(g, n), &n);
    if (fresh) continue;
    for (size_t i = 0; i < n.outs.size(); ++i)
      if (n.outs[i] != kNoValue) replacement.set(n.outs[i], it->second->outs[i]);
  }
  replacement.apply_results(g);
  return dce(std::move(g));
}

}  // namespace flashover::graph
