// kTraced -> kFunctional: no writes, no aliases.
//
// Every storage has one current value, that of its root (the first tensor seen on it). A view remembers how it is cut
// out of its parent and is cut again when it is read after a write; a write to a view goes back through the inverses of
// those cuts into the root. In-place operators become their functional twins, or "functional.*" (run on clones) where
// no twin is known. Copies that change nothing (clone, detach, lift_fresh) disappear; those that change strides become
// prim.copy.
//
//   Out       Graph::mutations for written inputs; outputs that are (views of) inputs or of earlier outputs keep that
//             relation
//   Declines  resize_/set_ of what is not fresh, writes through memory that two inputs share or that overlaps itself,
//             outputs whose relation to other results cannot be expressed
#pragma once
#include <vector>

#include "graph/graph.h"

namespace flashover::graph {

Graph functionalize(const Graph& traced);

// The same, and traced values that nothing else stands for, though a view or a copy may hold what they hold: what the
// program computes with one of `apart` is computed with a value of its own. In their place come those values, as they
// are when the program ends.
Graph functionalize(const Graph& traced, std::vector<ValueId>& apart);

}  // namespace flashover::graph
