// Looks for comparisons of values that approximated functions take part in.
#include "graph/passes/require_exact.h"

#include "ops/names.h"

namespace flashover::graph {
namespace {

bool is_comparison(Prim prim) { return is_any_of(prim, {Prim::eq, Prim::ne, Prim::lt, Prim::le, Prim::gt, Prim::ge}); }

}  // namespace

Graph require_exact(Graph g) {
  // In order, by prims alone: what follows from such functions, and what only from numbers of the program.
  std::vector<bool> behind(g.values.size()), number(g.values.size());
  for (const Node& n : g.nodes) {
    if (!n.op->is_prim()) continue;
    bool any = n.op->approximated, all_numbers = true, some_number = false;
    for (const Arg& a : n.args)
      for_each_ref(a, [&](ValueId v) {
        any |= behind[static_cast<size_t>(v)];
        all_numbers &= number[static_cast<size_t>(v)];
        some_number |= number[static_cast<size_t>(v)];
      });
    g.facts.exact |= any && !some_number && is_comparison(n.op->prim);
    for (ValueId v : n.outs) {
      if (v == kNoValue) continue;
      behind[static_cast<size_t>(v)] = any && is_floating(g.type(v).dtype);
      number[static_cast<size_t>(v)] = all_numbers;
    }
  }
  return g;
}

}  // namespace flashover::graph
