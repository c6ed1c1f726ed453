// Writes a graph anew, node by node in order.
#pragma once
#include <utility>

#include "graph/builder.h"
#include "graph/passes/dce.h"
#include "graph/rewrite/replace.h"

namespace flashover::graph {

struct Rewritten {
  Graph& graph;  // so far
  Builder& b;    // appends to it
  Replacement& replacement;
};

// write(i, node, rewritten) appends what stands for node i, whose operands are replaced already. What nothing reads
// then is dropped.
template <typename Write>
Graph rewrite_in_order(const Graph& g, Write&& write) {
  Graph out = g;
  out.nodes.clear();
  Builder b(out);
  Replacement replacement(g.values.size());
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    Node n = g.nodes[i];
    replacement.apply(n);
    write(i, std::move(n), Rewritten{out, b, replacement});
  }
  replacement.apply_results(out);
  return dce(std::move(out));
}

}  // namespace flashover::graph
