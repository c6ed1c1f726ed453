// Softmax's weights of 1e-44 count as 0 where only products see them.
#include "graph/passes/flush_denormals.h"

#include <algorithm>
#include <cmath>

#include "graph/rewrite/attention.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

// `v` holds the results of a softmax, perhaps in another order, scaled, with some left out.
bool holds_weights(Rewriter& r, ValueId v, int steps) {
  const Node* n = r.def(v);
  if (!n || steps == 0) return false;
  if (n->op->name == op::_softmax) return true;
  static constexpr OpName kKeeps[] = {Prim::reshape, Prim::permute,      Prim::copy,     Prim::broadcast,
                                      op::clone,     op::native_dropout, op::div_Tensor, op::mul_Tensor};
  if (std::find(std::begin(kKeeps), std::end(kKeeps), OpName(n->op->name)) == std::end(kKeeps)) return false;
  const Node kept = *n;
  if (holds_weights(r, ops::as_value(kept.args[0]), steps - 1)) return true;
  const auto* other = kept.op->name == op::mul_Tensor ? std::get_if<Ref>(&kept.args[1]) : nullptr;
  return other && holds_weights(r, other->id, steps - 1);
}

// Finite masks make weights of 1e-44, with which the library takes ten times as long.
bool flush(Rewriter& r, const Node& n, Values& results, const void*) {
  const ValueId a = ops::as_value(n.args[0]), b = ops::as_value(n.args[1]);
  const TensorType type = r.b.type(n.outs[0]);
  if (type.dtype != DType::kF32 || !on_cpu(r.b.type(a)) || !on_cpu(r.b.type(b))) return false;
  constexpr int kSteps = 8;
  if (!holds_weights(r, a, kSteps) && !holds_weights(r, b, kSteps)) return false;
  results = {r.b.emit("flashover.bmm_flushed.default", {Ref{a}, Ref{b}}, type)};
  return true;
}

struct Flushing {
  std::vector<char> sums_only;  // by value: whatever becomes of it is multiplied and added up
};

// Numbers near 0 are as good as 0 where nothing but sums of products is made of them.
std::vector<char> find_sums_only(const Graph& g) {
  static constexpr OpName kProducts[] = {op::bmm, op::mm, "flashover.bmm_flushed.default"};
  static constexpr OpName kKeeps[] = {Prim::reshape,      Prim::permute,  Prim::copy,    Prim::broadcast,
                                      Prim::slice,        Prim::convert,  op::clone,     op::_to_copy,
                                      op::native_dropout, op::div_Tensor, op::mul_Tensor};
  const auto among = [](const auto& names, OpName name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  std::vector<char> sums_only(g.values.size(), 1);
  for (const Output& o : g.outputs)
    if (o.value != kNoValue) sums_only[static_cast<size_t>(o.value)] = 0;
  for (const Mutation& m : g.mutations) sums_only[static_cast<size_t>(m.value)] = 0;
  for (size_t i = g.nodes.size(); i-- > 0;) {
    const Node& n = g.nodes[i];
    const bool product = among(kProducts, n.op->name), backward = n.op->name == op::_softmax_backward_data;
    for (size_t k = 0; k < n.args.size(); ++k) {
      const bool keeps = among(kKeeps, n.op->name) && (k == 0 || n.op->name == op::mul_Tensor) &&
                         is_floating(g.type(n.outs[0]).dtype) && sums_only[static_cast<size_t>(n.outs[0])];
      if (product || (backward && k == 1) || keeps) continue;
      for_each_ref(n.args[k], [&](ValueId v) { sums_only[static_cast<size_t>(v)] = 0; });
    }
  }
  return sums_only;
}

// exp(-100) is a denormal number, with which all arithmetic takes a hundred times as long: finite masks make many.
bool flush_softmax(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& flushing = *static_cast<const Flushing*>(user);
  const ValueId v = n.outs[0], in = ops::as_value(n.args[0]);
  const TensorType type = r.b.type(v);
  if (!flushing.sums_only[static_cast<size_t>(v)] || !on_cpu(type) || type.rank() == 0 ||
      !(type.dtype == DType::kF32 || is_reduced(type.dtype)))
    return false;
  if (std::any_of(type.sizes.begin(), type.sizes.end(), [](sym::Expr s) { return s.is_const(0); })) return false;
  const std::vector<int64_t> dim{ops::wrap_dim(ops::as_int(n.args[1]), type.rank())};
  constexpr double kLeast = -87.33;
  const ValueId x = r.b.convert(in, DType::kF32), off = r.b.sub(x, r.b.amax(x, dim, true));
  const ValueId none = r.b.full_like(off, -INFINITY);
  const ValueId e = r.b.exp(r.b.where(r.b.lt(off, r.b.full_like(off, kLeast)), none, off));
  results = {r.b.convert(r.b.div(e, r.b.sum(e, dim, true)), type.dtype)};
  return true;
}

constexpr RewriteRule kFlushingRules[] = {{op::bmm, "weights times something: numbers near 0 count as 0", flush}};
constexpr RewriteRule kSoftmax[] = {
    {op::_softmax, "weights of products alone: exp is never a denormal number", flush_softmax}};

}  // namespace

Graph flush_denormals(Graph g, const target::Providers& providers) {
  if (providers.strict_numerics) return g;
  g = rewrite(std::move(g), kFlushingRules);
  const Flushing flushing{find_sums_only(g)};
  return rewrite(std::move(g), kSoftmax, &flushing);
}

}  // namespace flashover::graph
