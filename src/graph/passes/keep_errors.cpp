// Two walks: who reads what, from the results backwards, and what follows from tangents.
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

// Per value: does it follow from a tangent?
std::vector<bool> of_tangents(const Graph& g) {
  std::vector<bool> follows(g.values.size());
  for (const Input& i : g.inputs) follows[i.value] = i.kind == InputKind::kTangent;
  for (const Node& n : g.nodes) {
    bool any = false;
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { any = any || follows[v]; });
    for (ValueId v : n.outs)
      if (v != kNoValue) follows[v] = any;
  }
  return follows;
}

Node reader_of(const Node& n) {
  RefList results;
  for (ValueId v : n.outs)
    if (v != kNoValue) results.push_back(Ref{v});
  static const ops::OpRow* const computed = ops::find(op::computed);
  return {.op = computed, .args = {std::move(results)}, .outs = {}, .location = n.location};
}

}  // namespace

Graph keep_errors(Graph g) {
  const std::vector<bool> whole = wholly_read(g, live_nodes(g)), late = of_tangents(g);
  std::vector<Node> nodes;
  nodes.reserve(g.nodes.size());
  for (Node& node : g.nodes) {
    nodes.push_back(std::move(node));
    const Node& n = nodes.back();
    const ValueId first = n.outs.empty() ? kNoValue : n.outs[0];  // the contents are looked at for this one
    if (first != kNoValue && !whole[first] && !late[first] && may_refuse(g, n)) nodes.push_back(reader_of(n));
  }
  g.nodes = std::move(nodes);
  return g;
}

}  // namespace flashover::graph
