// Walks over the graph: who reads what, from the results backwards; what follows from inputs, from tangents, and from
// masks, forwards.
#include "graph/passes/keep_errors.h"

#include <algorithm>

#include "graph/passes/dce.h"
#include "ops/args.h"
#include "ops/names.h"
#include "ops/ops.h"
#include "ops/refusals.h"

namespace flashover::graph {
namespace {

bool is_divisor_known(const Arg& divisor) {
  if (std::holds_alternative<Ref>(divisor) || !ops::is_scalar(divisor)) return false;
  const auto* e = std::get_if<sym::Expr>(&divisor);
  return (!e || e->is_const()) && !ops::is_number(divisor, 0);
}

bool may_refuse(const Graph& g, const Node& n) {
  const auto result = std::ranges::find_if(n.outs, [](ValueId v) { return v != kNoValue; });
  if (result == n.outs.end() || g.type(*result).device.type != DeviceType::kCPU) return false;
  switch (ops::refuses(n.op->name)) {
    case ops::Refuses::kNothing:
      return false;
    case ops::Refuses::kZeroDivisor:
      return is_integral(g.type(*result).dtype) && !is_divisor_known(n.args[1]);
    case ops::Refuses::kContents:
      return true;
  }
  return false;
}

bool reads_sizes_alone(const Node& n) {
  return op::is_any_of(n.op->name,
                       {op::zeros_like, op::ones_like, op::full_like, op::new_zeros, op::new_ones, op::new_full});
}

// A slice of all there is reads all.
bool leaves_out(const Graph& g, const Node& n) {
  return n.op->prim == Prim::slice && !(g.type(n.outs[0]).numel() == g.type(ops::as_value(n.args[0])).numel());
}

// Per value: is every element of it computed, as far as the passes and kernels that follow may leave out what nobody
// reads? They see through views and pointwise operators.
std::vector<bool> wholly_read(const Graph& g, const std::vector<bool>& live) {
  std::vector<bool> whole(g.values.size());
  for (const Output& o : g.outputs)
    if (o.value != kNoValue) whole[o.value] = true;
  for (const Mutation& m : g.mutations) whole[m.value] = true;
  for (size_t i = g.nodes.size(); i-- > 0;) {
    const Node& n = g.nodes[i];
    if (!live[i] || reads_sizes_alone(n) || leaves_out(g, n)) continue;
    const bool passes_on = n.op->kind == ops::OpKind::kView || n.op->kind == ops::OpKind::kPointwise;
    if (passes_on && std::ranges::any_of(n.outs, [&](ValueId v) { return v != kNoValue && !whole[v]; })) continue;
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { whole[v] = true; });
  }
  return whole;
}

// Per value: does it follow from one of these inputs?
template <typename Which>
std::vector<bool> following(const Graph& g, Which which) {
  std::vector<bool> follows(g.values.size());
  for (const Input& i : g.inputs) follows[i.value] = which(i);
  for (const Node& n : g.nodes) {
    bool any = false;
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { any = any || follows[v]; });
    for (ValueId v : n.outs)
      if (v != kNoValue) follows[v] = any;
  }
  return follows;
}

// Where a mask is true there are elements: x[mask].
std::vector<bool> places_of_masks(const Graph& g) {
  std::vector<bool> places(g.values.size());
  for (const Node& n : g.nodes) {
    const bool views = n.op->kind == ops::OpKind::kView && std::holds_alternative<Ref>(n.args[0]);
    if (n.op->name == op::nonzero || (views && places[ops::as_value(n.args[0])]))
      for (ValueId v : n.outs)
        if (v != kNoValue) places[v] = true;
  }
  return places;
}
bool indexes_by_masks(const Node& n, const std::vector<bool>& places) {
  if (n.op->name != op::index_Tensor) return false;
  bool all = true;
  for_each_ref(n.args[1], [&](ValueId v) { all = all && places[v]; });
  return all;
}

Node reader_of(RefList results, int32_t location) {
  static const ops::OpRow* const computed = ops::find(op::computed);
  return {.op = computed, .args = {std::move(results)}, .outs = {}, .location = location};
}

}  // namespace

// One node reads them all, behind the forward: what it reads waits for no check of sizes, and no backward for it.
// (Of what is the same in each call nothing is kept: tables of blocks, as flex_attention makes them.)
Graph keep_errors(Graph g) {
  const std::vector<bool> whole = wholly_read(g, live_nodes(g)), places = places_of_masks(g);
  const std::vector<bool> late = following(g, [](const Input& i) { return i.kind == InputKind::kTangent; });
  const std::vector<bool> given = following(g, [](const Input&) { return true; });
  RefList kept;
  int32_t location = -1;
  size_t end = g.nodes.size();
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    const ValueId first = n.outs.empty() ? kNoValue : n.outs[0];  // the contents are looked at for this one
    if (first == kNoValue) continue;
    if (late[first]) {
      end = std::min(end, i);
    } else if (i < end && !whole[first] && given[first] && may_refuse(g, n) && !indexes_by_masks(n, places)) {
      kept.push_back(Ref{first});
      if (location < 0) location = n.location;
    }
  }
  if (kept.empty()) return g;
  g.nodes.insert(g.nodes.begin() + static_cast<std::ptrdiff_t>(end), reader_of(std::move(kept), location));
  return g;
}

}  // namespace flashover::graph
