// One walk: what the dead nodes are is dce's answer.
#include "graph/passes/keep_errors.h"

#include <algorithm>

#include "graph/passes/dce.h"
#include "ops/args.h"
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
  const std::vector<bool> live = live_nodes(g), late = of_tangents(g);
  std::vector<Node> nodes;
  nodes.reserve(g.nodes.size());
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    nodes.push_back(std::move(g.nodes[i]));
    const Node& n = nodes.back();
    const bool is_late = std::ranges::any_of(n.outs, [&](ValueId v) { return v != kNoValue && late[v]; });
    if (!live[i] && !is_late && may_refuse(g, n)) nodes.push_back(reader_of(n));
  }
  g.nodes = std::move(nodes);
  return g;
}

}  // namespace flashover::graph
