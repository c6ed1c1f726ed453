// Copies a graph node by node, asking the rules at each, and converts layouts where a rule changed one.
#include "graph/rewrite/rewriter.h"

#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "graph/analysis/symbolic.h"
#include "graph/passes/dce.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {

bool same_strides(const TensorType& a, const TensorType& b) {
  if (a.strides.size() != b.strides.size()) return false;
  for (size_t d = 0; d < a.rank(); ++d)
    if (!a.sizes[d].is_const(1) && !sym::known_eq(a.strides[d], b.strides[d])) return false;
  return true;
}

bool is_writable_layout(const TensorType& t) {
  std::vector<size_t> order;
  for (size_t d = 0; d < t.rank(); ++d)
    if (!t.sizes[d].is_const(1)) order.push_back(d);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return ops::is_smaller_stride(t.strides[a], t.strides[b]); });
  sym::Expr reach = 0;
  for (size_t d : order) {
    if (!sym::known_lt(reach, t.strides[d])) return false;
    reach += (t.sizes[d] - 1) * t.strides[d];
  }
  return true;
}

ValueId in_layout(Builder& b, size_t first_node, ValueId v, const TensorType& expected) {
  if (expected.opaque || same_strides(b.type(v), expected) || !is_writable_layout(expected)) return v;
  Graph& g = b.graph();
  for (size_t k = first_node; k < g.nodes.size(); ++k)
    for (ValueId out : g.nodes[k].outs)
      if (out == v && g.nodes[k].op->is_prim() && g.nodes[k].op->kind != ops::OpKind::kView) {
        g.values[v].type.strides = expected.strides;
        return v;
      }
  TensorType t = expected;
  t.offset = 0;
  return b.emit(Prim::copy, {Ref{v}}, std::move(t));
}

std::vector<bool> frozen_values(const Graph& g) {
  std::vector<bool> frozen(g.values.size());
  for (const Input& i : g.inputs) frozen[i.value] = is_lasting(i.kind);
  for (const Mutation& m : g.mutations) frozen[g.inputs[m.input].value] = false;
  for (const Node& n : g.nodes) {
    bool all = !n.op->once() && !is_symbolic(g, n);
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { all = all && frozen[v]; });
    for (ValueId v : n.outs)
      if (v != kNoValue) frozen[v] = all;
  }
  return frozen;
}

Rewriter::Rewriter(Graph& in) : out(std::move(in.facts)), b(out) {
  out.values = std::move(in.values);
  out.inputs = std::move(in.inputs);
  out.mutations = in.mutations;  // numbers of inputs are needed by is_frozen; the values are resolved at the end
  producer_.assign(out.values.size(), -1);
  uses_.assign(out.values.size(), 0);
  frozen_.assign(out.values.size(), -1);
  for (const Node& n : in.nodes)
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { ++uses_[v]; });
  for (const Output& o : in.outputs)
    if (o.value != kNoValue) ++uses_[o.value];
  for (const Mutation& m : in.mutations) ++uses_[m.value];
  for (const Input& i : out.inputs) frozen_[i.value] = is_lasting(i.kind) ? 1 : 0;
  for (const Mutation& m : out.mutations) frozen_[out.inputs[m.input].value] = 0;
}

void Rewriter::index() {
  producer_.resize(out.values.size(), -1);
  frozen_.resize(out.values.size(), -1);
  for (; indexed_ < out.nodes.size(); ++indexed_)
    for (ValueId v : out.nodes[indexed_].outs)
      if (v != kNoValue) producer_[v] = static_cast<int32_t>(indexed_);
}

const Node* Rewriter::def(ValueId v) {
  index();
  return v == kNoValue || producer_[v] < 0 ? nullptr : &out.nodes[producer_[v]];
}
const Node* Rewriter::def(ValueId v, OpName op) {
  const Node* n = def(v);
  return n && op == n->op->name ? n : nullptr;
}

void Rewriter::add_uses(ValueId v, int count) {
  if (static_cast<size_t>(v) >= uses_.size()) uses_.resize(v + 1, 0);
  uses_[v] += count;
}

bool Rewriter::is_frozen(ValueId v) {
  index();
  if (frozen_[v] >= 0) return frozen_[v] != 0;
  const Node* n = def(v);
  bool all = n && !n->op->once() && !is_symbolic(out, *n);
  if (n)
    for (const Arg& a : n->args) for_each_ref(a, [&](ValueId x) { all = all && is_frozen(x); });
  frozen_[v] = all ? 1 : 0;
  return all;
}

Definitions definitions(Rewriter& r) {
  return {[&r](ValueId v) { return r.def(v); }, [&r](ValueId v) -> const TensorType& { return r.b.type(v); }};
}

bool is_kept(Rewriter& r, ValueId v) {
  return r.is_frozen(v) && !(is_large(r.b.type(v)) && is_unpacked(definitions(r), v));
}

Graph rewrite(Graph g, std::span<const RewriteRule> rules, const void* user) {
  std::unordered_map<const ops::OpRow*, std::vector<const RewriteRule*>> by_op;
  for (const RewriteRule& rule : rules) by_op[ops::find(rule.op)].push_back(&rule);
  Rewriter r(g);
  Replacement replacement(r.out.values.size());
  Values results;
  for (Node& n : g.nodes) {
    replacement.apply(n);
    bool done = false;
    const size_t first_node = r.out.nodes.size();
    const auto first_value = static_cast<ValueId>(r.out.values.size());
    r.b.set_location(n.location);
    const auto found = by_op.find(n.op);
    for (size_t k = 0; found != by_op.end() && k < found->second.size() && !done; ++k) {
      const RewriteRule& rule = *found->second[k];
      results.clear();
      if (!rule.apply(r, n, results, user)) continue;
      FLASHOVER_CHECK(results.size() == n.outs.size()) << rule.meaning << ": one value per result";
      for (size_t i = 0; i < results.size(); ++i) {
        if (n.outs[i] == kNoValue || results[i] == kNoValue) continue;
        const TensorType expected = r.out.type(n.outs[i]);
        const TensorType& built = r.out.type(results[i]);
        FLASHOVER_CHECK(built.dtype == expected.dtype && same_sizes(built.sizes, expected.sizes))
            << rule.meaning << ": gives " << str(built) << " for " << str(expected);
        // A reader that needs eager's strides finds them in a copy; relax_layout removes the copy for all others.
        results[i] = in_layout(r.b, first_node, results[i], expected);
        replacement.set(n.outs[i], results[i]);
      }
      for (size_t k = first_node; k < r.out.nodes.size(); ++k)
        for (const Arg& a : r.out.nodes[k].args)
          for_each_ref(a, [&](ValueId v) { r.add_uses(v, v >= first_value ? 1 : 0); });
      for (size_t i = 0; i < results.size(); ++i)
        if (n.outs[i] != kNoValue && results[i] != kNoValue) r.add_uses(results[i], r.uses(n.outs[i]));
      done = true;
    }
    if (!done) r.out.nodes.push_back(std::move(n));
  }
  r.out.outputs = std::move(g.outputs);
  replacement.apply_results(r.out);
  return dce(std::move(r.out));
}

}  // namespace flashover::graph
