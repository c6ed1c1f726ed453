// Marks forwards from lasting inputs; what costs next to nothing is not worth keeping.
#include "graph/passes/split_frozen.h"

#include <algorithm>

#include "graph/analysis/unpacking.h"
#include "graph/rewrite/rewriter.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

// Cheap enough to do again in every kernel that reads the result.
constexpr Prim kCheap[] = {Prim::full,       Prim::iota,        Prim::convert,     Prim::add,         Prim::sub,
                           Prim::mul,        Prim::neg,         Prim::eq,          Prim::ne,          Prim::lt,
                           Prim::le,         Prim::gt,          Prim::ge,          Prim::where,       Prim::bitwise_and,
                           Prim::bitwise_or, Prim::bitwise_xor, Prim::bitwise_not, Prim::logical_not, Prim::minimum,
                           Prim::maximum};

bool is_view(const Node& n) { return n.op->kind == ops::OpKind::kView && n.op->is_prim(); }
bool is_cheap(const Node& n) {
  return is_view(n) || std::find(std::begin(kCheap), std::end(kCheap), n.op->prim) != std::end(kCheap);
}

}  // namespace

Graph split_frozen(Graph g) {
  const std::vector<bool> frozen = frozen_values(g);
  std::vector<bool> computed(g.values.size());  // from no tensor at all, by cheap steps
  for (Node& n : g.nodes) {
    const bool candidate =
        std::all_of(n.outs.begin(), n.outs.end(), [&](ValueId v) { return v == kNoValue || frozen[v]; }) &&
        !n.op->once() && !n.outs.empty();
    bool cheap = is_cheap(n);
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { cheap = cheap && computed[v]; });
    for (ValueId v : n.outs)
      if (v != kNoValue) computed[v] = cheap;
    n.frozen = candidate && !cheap;
  }
  std::vector<bool> kept(g.values.size());
  for (const Node& n : g.nodes)
    for (ValueId v : n.outs)
      if (v != kNoValue) kept[v] = n.frozen;
  const std::vector<bool> again = unpacked_in_each_call(g, kept);
  for (Node& n : g.nodes)
    if (n.frozen && n.outs[0] != kNoValue && again[n.outs[0]]) n.frozen = false;
  // From the back: views whose every reader runs in each call are free there.
  std::vector<bool> read_frozen(g.values.size());
  for (size_t i = g.nodes.size(); i-- > 0;) {
    Node& n = g.nodes[i];
    if (n.frozen && is_view(n) &&
        std::none_of(n.outs.begin(), n.outs.end(), [&](ValueId v) { return v != kNoValue && read_frozen[v]; }))
      n.frozen = false;
    if (n.frozen)
      for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { read_frozen[v] = true; });
  }
  // A frozen node may read a cheap computed value: that is then computed in the frozen part (too).
  std::vector<size_t> producer(g.values.size(), SIZE_MAX);
  for (size_t i = 0; i < g.nodes.size(); ++i)
    for (ValueId v : g.nodes[i].outs)
      if (v != kNoValue) producer[v] = i;
  for (size_t i = g.nodes.size(); i-- > 0;) {
    if (!g.nodes[i].frozen) continue;
    for (const Arg& a : g.nodes[i].args)
      for_each_ref(a, [&](ValueId v) {
        if (producer[v] != SIZE_MAX) g.nodes[producer[v]].frozen = true;
      });
  }
  return g;
}

}  // namespace flashover::graph
