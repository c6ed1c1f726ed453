// What an operator writes.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

// Every tensor mentioned by an argument that the node's operator writes (kNoValue skipped). OpRow::mutates has a bit for
// each of the first 32 arguments.
template <typename F>
void for_each_written(const Node& n, F&& f) {
  for (size_t i = 0; i < n.args.size() && i < 32; ++i)
    if (n.op->mutates >> i & 1) for_each_ref(n.args[i], f);
}

}  // namespace flashover::graph
