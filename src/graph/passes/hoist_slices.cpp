// Walks from each slice backwards, noting for each value which rows of it are read; then copies the graph with those.
#include "graph/passes/hoist_slices.h"

#include <algorithm>
#include <compare>
#include <map>
#include <optional>
#include <queue>
#include <set>

#include "graph/builder.h"
#include "graph/passes/dce.h"
#include "graph/rewrite/replace.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

// Rows start, start + step, ... (`count` of them) of dim `dim`.
struct SliceCut {
  size_t dim = 0;
  int64_t start = 0, step = 1, count = 0;
  auto operator<=>(const SliceCut&) const = default;
  int64_t last() const { return start + (count - 1) * step; }
};
// By argument of a node: what is read of it if only a cut of the node's first result is read.
using ArgCuts = std::vector<std::optional<SliceCut>>;

const TensorType& type_of(const Graph& g, const Arg& a) { return g.type(ops::as_value(a)); }

std::vector<int64_t> constant_sizes(const Sizes& sizes) {
  std::vector<int64_t> out;
  for (const sym::Expr& s : sizes) out.push_back(s.value());
  return out;
}
bool is_constant(const Sizes& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [](const sym::Expr& s) { return s.is_const(); });
}

// The one dim that a prim.slice shortens.
std::optional<SliceCut> cut_of(const Node& slice, const Graph& g) {
  const TensorType &whole = type_of(g, slice.args[0]), &kept = g.type(slice.outs[0]);
  if (!is_constant(whole.sizes) || !is_constant(kept.sizes)) return std::nullopt;
  const Sizes starts = ops::as_sizes(slice.args[1]), steps = ops::as_sizes(slice.args[3]);
  std::optional<SliceCut> cut;
  for (size_t d = 0; d < whole.rank(); ++d) {
    if (kept.sizes[d].is_const(0)) return std::nullopt;
    if (sym::known_eq(whole.sizes[d], kept.sizes[d])) continue;
    if (cut || !starts[d].is_const() || !steps[d].is_const()) return std::nullopt;
    cut = SliceCut{d, starts[d].value(), steps[d].value(), kept.sizes[d].value()};
  }
  return cut && 2 * cut->count <= whole.sizes[cut->dim].value() ? cut : std::nullopt;
}

// What is read of an operand that is broadcast to `result`.
std::optional<SliceCut> through_broadcast(const TensorType& operand, const TensorType& result, const SliceCut& cut) {
  const size_t behind = result.rank() - cut.dim;
  if (operand.rank() < behind || operand.sizes[operand.rank() - behind].is_const(1)) return std::nullopt;
  SliceCut out = cut;
  out.dim = operand.rank() - behind;
  return out;
}

bool pointwise(const Graph& g, const Node& n, const SliceCut& cut, ArgCuts& reads) {
  const TensorType& result = g.type(n.outs[0]);
  if (!is_floating(result.dtype) && result.dtype != DType::kBool) return false;  // division by 0 raises
  for (size_t i = 0; i < n.args.size(); ++i) {
    if (std::holds_alternative<RefList>(n.args[i])) return false;
    if (const auto* r = std::get_if<Ref>(&n.args[i]); r && r->id != kNoValue)
      reads[i] = through_broadcast(g.type(r->id), result, cut);
  }
  return true;
}

bool copy(const Graph&, const Node&, const SliceCut& cut, ArgCuts& reads) {
  reads[0] = cut;
  return true;
}

bool permute(const Graph&, const Node& n, const SliceCut& cut, ArgCuts& reads) {
  reads[0] = cut;
  reads[0]->dim = static_cast<size_t>(ops::as_ints(n.args[1])[cut.dim]);
  return true;
}

// Dims of the operand and of the result that hold the same elements lie between equal products of sizes. The cut dim
// stands alone on both sides, or is one of two that are one on the other side.
bool reshape(const Graph& g, const Node& n, const SliceCut& cut, ArgCuts& reads) {
  const std::vector<int64_t> to = constant_sizes(g.type(n.outs[0]).sizes),
                             from = constant_sizes(type_of(g, n.args[0]).sizes);
  int64_t outer = 1, reach = 1;
  for (size_t d = 0; d < cut.dim; ++d) outer *= to[d];
  size_t dim = 0;
  for (; dim < from.size() && reach * from[dim] <= outer && reach < outer; ++dim) reach *= from[dim];
  while (dim < from.size() && from[dim] == 1 && to[cut.dim] != 1) ++dim;
  if (dim >= from.size()) return false;
  const int64_t size = to[cut.dim];
  SliceCut out = cut;
  out.dim = dim;
  if (reach == outer && from[dim] == size) {
    // the same dim
  } else if (reach == outer && dim + 1 < from.size() && from[dim] * from[dim + 1] == size &&
             cut.step == from[dim + 1] && cut.start < cut.step && cut.count == from[dim]) {
    out = {dim + 1, cut.start, 1, 1};  // [2, 17] <- [34]: one of each 17
  } else if (cut.dim > 0 && cut.count == 1 && reach * to[cut.dim - 1] == outer && from[dim] == to[cut.dim - 1] * size) {
    out = {dim, cut.start, size, to[cut.dim - 1]};  // [34] <- [2, 17]
  } else {
    return false;
  }
  reads[0] = out;
  return true;
}

// [rows, inner] x [inner, columns], or batches of them: rows of the first factor, at argument `first`.
template <size_t first>
bool product_reads(const Graph& g, const Node& n, const SliceCut& cut, ArgCuts& reads) {
  const TensorType& result = g.type(n.outs[0]);
  if (cut.dim + 2 != result.rank()) return false;
  reads[first] = cut;
  if (first == 1) reads[0] = through_broadcast(type_of(g, n.args[0]), result, cut);
  return true;
}

bool layer_norm(const Graph& g, const Node& n, const SliceCut& cut, ArgCuts& reads) {
  reads[0] = cut;
  return cut.dim + ops::as_ints(n.args[1]).size() < g.type(n.outs[0]).rank();
}

bool softmax(const Graph& g, const Node& n, const SliceCut& cut, ArgCuts& reads) {
  const auto rank = static_cast<int64_t>(g.type(n.outs[0]).rank());
  reads[0] = cut;
  return (ops::as_int(n.args[1]) + rank) % rank != static_cast<int64_t>(cut.dim);
}

// (q, k, v, dropout, causal, mask, scale). A causal mask hides nothing from the last query.
constexpr size_t kCausal = 4, kMask = 5;
bool attention(const Graph& g, const Node& n, const SliceCut& cut, ArgCuts& reads) {
  const TensorType &result = g.type(n.outs[0]), &key = type_of(g, n.args[1]);
  if (cut.dim + 2 != result.rank() || !ops::is_number(n.args[3], 0)) return false;
  const int64_t queries = result.sizes[cut.dim].value();
  const bool last = cut.count == 1 && cut.start == queries - 1 && key.sizes[cut.dim].value() == queries;
  if (ops::as_bool(n.args[kCausal]) && !last) return false;
  reads[0] = cut;
  if (!is_none(n.args[kMask])) reads[kMask] = through_broadcast(type_of(g, n.args[kMask]), result, cut);
  return true;
}

struct Rule {
  OpName op;
  bool (*reads)(const Graph&, const Node&, const SliceCut&, ArgCuts&);
  bool is_product;
};
constexpr Rule kReadRules[] = {
    {Prim::copy, copy, false},
    {Prim::convert, copy, false},
    {op::_to_copy, copy, false},
    {Prim::permute, permute, false},
    {Prim::reshape, reshape, false},
    {op::mm, product_reads<0>, true},
    {op::bmm, product_reads<0>, true},
    {op::addmm, product_reads<1>, true},
    {op::baddbmm, product_reads<1>, true},
    {op::native_layer_norm, layer_norm, false},
    {op::_softmax, softmax, false},
    {op::_safe_softmax, softmax, false},
    {op::_scaled_dot_product_flash_attention_for_cpu, attention, true},
};

const Rule* rule_of(const Node& n) {
  static constexpr Rule kPointwise{"", pointwise, false};
  for (const Rule& rule : kReadRules)
    if (n.op->name == rule.op) return &rule;
  return n.op->kind == ops::OpKind::kPointwise && !n.op->once() ? &kPointwise : nullptr;
}

// Which nodes compute rows only, and which rows.
class Plan {
 public:
  explicit Plan(const Graph& g)
      : g_(g), producer_(g.values.size(), -1), users_(g.values.size()), cuts_(g.nodes.size()) {
    for (size_t i = 0; i < g.nodes.size(); ++i) {
      for (ValueId v : g.nodes[i].outs)
        if (v != kNoValue) producer_[v] = static_cast<int32_t>(i);
      for (const Arg& a : g.nodes[i].args) for_each_ref(a, [&](ValueId v) { ++users_[v]; });
    }
    for (const Output& o : g.outputs)
      if (o.value != kNoValue) ++users_[o.value];
    for (const Mutation& m : g.mutations) ++users_[m.value];
    for (size_t i = g.nodes.size(); i-- > 0;)
      if (g.nodes[i].op->prim == Prim::slice && !cuts_[i]) hoist(i);
  }
  const std::optional<SliceCut>& of(size_t node) const { return cuts_[node]; }
  bool any() const {
    return std::any_of(cuts_.begin(), cuts_.end(), [](const auto& c) { return c.has_value(); });
  }

 private:
  struct Demand {
    SliceCut cut;
    int32_t readers = 0;  // those that read this cut and no more
    bool same = true;     // all of them the same cut
  };

  void hoist(size_t slice) {
    const std::optional<SliceCut> cut = cut_of(g_.nodes[slice], g_);
    if (!cut) return;
    std::map<ValueId, Demand> demands;
    std::priority_queue<int32_t> nodes;  // the last one first: its readers are known by then
    const auto demand = [&](ValueId v, const SliceCut& c) {
      Demand& w = demands.try_emplace(v, Demand{c}).first->second;
      w.same &= w.cut == c;
      if (w.readers++ == 0 && producer_[v] >= 0) nodes.push(producer_[v]);
    };
    demand(ops::as_value(g_.nodes[slice].args[0]), *cut);
    std::vector<std::pair<size_t, SliceCut>> found;
    bool any_product = false;
    while (!nodes.empty()) {
      const auto i = static_cast<size_t>(nodes.top());
      nodes.pop();
      const Node& n = g_.nodes[i];
      const Rule* rule = rule_of(n);
      if (!rule || cuts_[i] || !only_first_result(n)) continue;
      const Demand& w = demands.at(n.outs[0]);
      ArgCuts reads(n.args.size());
      if (!w.same || w.readers != users_[n.outs[0]] || !is_plain(n) || !rule->reads(g_, n, w.cut, reads)) continue;
      found.emplace_back(i, w.cut);
      any_product |= rule->is_product;
      for (size_t k = 0; k < reads.size(); ++k)
        if (reads[k]) demand(ops::as_value(n.args[k]), *reads[k]);
    }
    if (!any_product) return;
    for (const auto& [node, c] : found) cuts_[node] = c;
    cuts_[slice] = cut;
  }

  bool only_first_result(const Node& n) const {
    for (size_t k = 1; k < n.outs.size(); ++k)
      if (n.outs[k] != kNoValue && users_[n.outs[k]] != 0) return false;
    return n.outs[0] != kNoValue;
  }
  // All sizes are constants, and no library's own layout is among them.
  bool is_plain(const Node& n) const {
    bool plain = is_constant(g_.type(n.outs[0]).sizes) && !g_.type(n.outs[0]).opaque;
    for (const Arg& a : n.args)
      for_each_ref(a, [&](ValueId v) { plain &= is_constant(g_.type(v).sizes) && !g_.type(v).opaque; });
    return plain;
  }

  const Graph& g_;
  std::vector<int32_t> producer_;  // node number
  std::vector<int32_t> users_;
  std::vector<std::optional<SliceCut>> cuts_;  // by node: of its first result
};

// The rows of `t`, without gaps, dims in the order in which they lie.
TensorType rows_of(const TensorType& t, const SliceCut& cut) {
  TensorType out = t;
  out.sizes[cut.dim] = cut.count;
  out.offset = 0;
  out.strides = ops::dense_like(out.sizes, t.strides);
  return out;
}

class Copier {
 public:
  Copier(Graph& g, const Plan& plan)
      : plan_(plan), nodes_(std::move(g.nodes)), out_(std::move(g.facts)), b_(out_), replacement_(g.values.size()) {
    out_.values = std::move(g.values);
    out_.inputs = std::move(g.inputs);
    out_.outputs = std::move(g.outputs);
    out_.mutations = std::move(g.mutations);
  }

  Graph copy() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      Node n = std::move(nodes_[i]);
      b_.set_location(n.location);
      const bool is_slice = n.op->prim == Prim::slice;
      if (plan_.of(i) && !is_slice) {
        shorten(n, *plan_.of(i));
        continue;
      }
      if (plan_.of(i)) {
        replacement_.set(n.outs[0], rows(ops::as_value(n.args[0]), *plan_.of(i), out_.type(n.outs[0])));
        continue;
      }
      replacement_.apply(n);
      if (is_view_of_dense(n)) {
        const ValueId view = b_.emit(n.op->name, n.args);
        replacement_.set(n.outs[0], view);
        dense_.insert(view);
      } else {
        out_.nodes.push_back(std::move(n));
      }
    }
    replacement_.apply_results(out_);
    return dce(std::move(out_));
  }

 private:
  // The node on rows. Its other results are not read.
  void shorten(const Node& n, const SliceCut& cut) {
    const Rule* rule = rule_of(n);
    ArgCuts reads(n.args.size());
    rule->reads(out_, n, cut, reads);
    std::vector<Arg> args = n.args;
    replacement_.apply(args);
    for (size_t k = 0; k < args.size(); ++k)
      if (reads[k]) args[k] = Ref{rows(ops::as_value(n.args[k]), *reads[k])};
    if (n.op->prim == Prim::reshape) {
      Sizes sizes = ops::as_sizes(n.args[1]);
      sizes[cut.dim] = cut.count;
      args[1] = std::move(sizes);
    }
    if (rule->reads == attention) args[kCausal] = false;
    // Norms' statistics and attention's sums have their rows in the same dim.
    const sym::Expr whole = out_.type(n.outs[0]).sizes[cut.dim];
    std::vector<TensorType> types;
    for (ValueId v : n.outs) {
      if (v == kNoValue) continue;
      const TensorType& type = out_.type(v);
      const bool has_rows = type.rank() > cut.dim && sym::known_eq(type.sizes[cut.dim], whole);
      types.push_back(has_rows ? rows_of(type, cut) : type);
    }
    shortened_[n.outs[0]] = b_.emit_all(n.op->name, std::move(args), std::move(types))[0];
  }

  // In place of a slice, whose type says how the dims are to lie; not how far apart.
  ValueId rows(ValueId v, const SliceCut& cut, const TensorType& slice) {
    ValueId out = rows(v, cut);
    TensorType type = out_.type(out);
    type.strides = ops::dense_like(slice.sizes, slice.strides);
    if (!same_strides(type, out_.type(out))) out = b_.emit(Prim::copy, {Ref{out}}, std::move(type));
    dense_.insert(out);
    return out;
  }
  bool is_view_of_dense(const Node& n) const {
    return n.op->is_prim() && n.op->kind == ops::OpKind::kView && dense_.contains(ops::as_value(n.args[0]));
  }

  ValueId rows(ValueId v, const SliceCut& cut) {
    if (const auto found = shortened_.find(v); found != shortened_.end()) return found->second;
    const auto [slice, is_new] = slices_.try_emplace({v, cut}, kNoValue);
    if (is_new)
      slice->second =
          b_.slice(replacement_.resolve(v), static_cast<int64_t>(cut.dim), cut.start, cut.last() + 1, cut.step);
    return slice->second;
  }

  const Plan& plan_;
  std::vector<Node> nodes_;
  Graph out_;
  Builder b_;
  Replacement replacement_;                                 // slices and their views, by what the graph has instead
  std::map<ValueId, ValueId> shortened_;                    // by value: its rows
  std::map<std::pair<ValueId, SliceCut>, ValueId> slices_;  // of values that are computed whole
  std::set<ValueId> dense_;  // what stands in place of a slice, and views of it: without the gaps that the slice had
};

}  // namespace

Graph hoist_slices(Graph g, const target::Providers& providers) {
  if (providers.strict_numerics) return g;
  const Plan plan(g);
  return plan.any() ? Copier(g, plan).copy() : std::move(g);
}

}  // namespace flashover::graph
