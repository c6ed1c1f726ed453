// Matches softmax between two products, with scale and biases, and puts the operator in its place.
#include "graph/passes/attention.h"

#include <algorithm>
#include <cmath>

#include "graph/passes/match.h"
#include "graph/passes/rewriter.h"
#include "ops/args.h"

namespace flashover::graph {
namespace {

using Values = std::vector<ValueId>;
constexpr size_t kMaxBiases = 2, kMaxBatchDims = 3;
// Below so many queries laying out the keys costs more than it saves; from so many keys on ATen's is level.
constexpr int64_t kLeastQueries = 16, kMostKeys = 1536, kMostWidth = 256;

bool on_cpu(const TensorType& t) { return t.device.type == DeviceType::kCPU && all_const(t.sizes); }
bool dense_last(const TensorType& t) {
  return !t.strides.empty() && (t.strides.back().is_const(1) || t.sizes.back().is_const(1));
}

bool suits(const Providers& p, DType dtype, int64_t queries, int64_t keys, int64_t width, int64_t value_width) {
  return (dtype == DType::kF32 ? p.own_f32 : dtype == DType::kBF16 && p.own_bf16) && queries >= kLeastQueries &&
         keys >= kLeastQueries && keys <= kMostKeys && width <= kMostWidth && value_width <= kMostWidth;
}

// Like `type` with another width. Heads lie between rows and width, as the operators write them.
TensorType heads_inside(TensorType type, sym::Expr width) {
  const size_t rank = type.rank();
  type.sizes.back() = width;
  Sizes turned = type.sizes;
  std::swap(turned[rank - 3], turned[rank - 2]);
  type.strides = contiguous_strides(turned);
  std::swap(type.strides[rank - 3], type.strides[rank - 2]);
  type.offset = 0;
  return type;
}

// q [batch..., queries, width], k [batch..., keys, width], v [batch..., keys, value width].
ValueId emit(Rewriter& r, ValueId q, ValueId k, ValueId v, const Values& biases, double scale, bool causal,
             bool zero_if_none) {
  RefList list;
  for (ValueId b : biases) list.push_back(Ref{b});
  return r.b.emit("flashover.attention.default", {Ref{q}, Ref{k}, Ref{v}, list, scale, causal, zero_if_none},
                  heads_inside(r.b.type(q), r.b.size(v, -1)));
}

// ---- written out ----

struct Added {
  ValueId bias;
  Sizes batch;  // the leading sizes of what it was added to
};
// What stands between the first product and the softmax.
struct Scores {
  Sizes batch;  // in the finest view on the way
  std::vector<Added> added;
  double scale = 1;
  Node product;
};

bool is_cast(const Node& n, Rewriter& r) {
  if (n.op->name != "aten._to_copy.default" && n.op->name != "prim.convert") return false;
  const auto real = [](DType d) { return d == DType::kF32 || is_reduced(d); };
  const TensorType &from = r.b.type(ops::as_value(n.args[0])), &to = r.b.type(n.outs[0]);
  return real(from.dtype) && real(to.dtype) && from.device == to.device;
}

Sizes leading(const TensorType& t) { return {t.sizes.begin(), t.sizes.end() - 2}; }
bool same_matrix(const TensorType& a, const TensorType& b) {
  return a.rank() >= 2 && b.rank() >= 2 && sym::known_eq(a.sizes[a.rank() - 1], b.sizes[b.rank() - 1]) &&
         sym::known_eq(a.sizes[a.rank() - 2], b.sizes[b.rank() - 2]);
}

// The factor of x * number or x / number, and x.
std::optional<std::pair<ValueId, double>> scaled(Rewriter& r, const Node& n) {
  const bool division = n.op->name == "aten.div.Tensor";
  if (!division && n.op->name != "aten.mul.Tensor") return std::nullopt;
  const auto factor = known_number(r, n.args[1]);
  if (!factor || *factor == 0) return std::nullopt;
  const ValueId x = ops::as_value(n.args[0]);
  if (!same_sizes(r.b.type(x).sizes, r.b.type(n.outs[0]).sizes)) return std::nullopt;
  return std::pair(x, division ? 1 / *factor : *factor);
}

// Down from the softmax's argument to the product, by steps that nobody else reads.
bool follow_scores(Rewriter& r, ValueId v, Scores& s) {
  s.batch = leading(r.b.type(v));
  while (true) {
    const Node* n = r.def(v);
    if (!n || r.uses(v) != 1) return false;
    const TensorType type = r.b.type(v);
    if (type.rank() - 2 > s.batch.size()) s.batch = leading(type);
    if (n->op->name == "aten.bmm.default") {
      s.product = *n;
      return true;
    }
    if (n->op->name == "prim.reshape" || n->op->name == "prim.copy" || is_cast(*n, r)) {
      v = ops::as_value(n->args[0]);
      if (!same_matrix(r.b.type(v), type)) return false;
    } else if (n->op->name == "aten.add.Tensor") {
      if (!ops::is_number(n->args[2], 1) || s.scale != 1 || s.added.size() == kMaxBiases) return false;
      const ValueId a = ops::as_value(n->args[0]), b = ops::as_value(n->args[1]);
      // The scores are the side that nobody else reads and that is as large as the sum; the other one may be smaller.
      const auto is_scores = [&](ValueId x) {
        const Node* d = r.def(x);
        return same_sizes(r.b.type(x).sizes, type.sizes) && r.uses(x) == 1 && d && !r.is_frozen(x) && a != b;
      };
      const bool first = is_scores(a);
      if (!first && !is_scores(b)) return false;
      s.added.push_back({first ? b : a, leading(type)});
      v = first ? a : b;
    } else if (const auto x = scaled(r, *n)) {
      s.scale *= x->second;
      v = x->first;
    } else {
      return false;
    }
  }
}

// `x` [batch, rows, columns] with its batch dim in parts: a view of the first value before the reshapes and copies that
// joined them, if one is. Factors on the way go into `scale`, where it is given.
ValueId with_batch(Rewriter& r, ValueId x, const Sizes& batch, double* scale = nullptr) {
  Sizes wanted = batch;
  wanted.push_back(r.b.size(x, -2));
  wanted.push_back(r.b.size(x, -1));
  ValueId best = x;
  const DType dtype = r.b.dtype(x);
  for (ValueId v = x;;) {
    const TensorType t = r.b.type(v);
    if (const auto strides = ops::view_strides(t, wanted)) best = v;
    const Node* n = r.def(v);
    if (!n) break;
    if (n->op->name == "prim.reshape" || n->op->name == "prim.copy") {
      v = ops::as_value(n->args[0]);
      continue;
    }
    const auto factor = scale ? scaled(r, *n) : std::nullopt;
    if (!factor || r.b.dtype(factor->first) != dtype) break;
    *scale *= factor->second;
    best = v = factor->first;
  }
  return r.b.reshape(best, wanted);
}

ValueId densely(Rewriter& r, ValueId x) {
  const TensorType t = r.b.type(x);
  return dense_last(t) ? x : r.b.emit("prim.copy", {Ref{x}}, dense_type(t));
}

// A bias that was added to something with the leading sizes `from`, for leading sizes `to` (a finer view of the same).
std::optional<ValueId> fit_bias(Rewriter& r, const Added& added, const Sizes& to) {
  TensorType t = r.b.type(added.bias);
  if ((t.dtype != DType::kF32 && t.dtype != DType::kBF16) || !on_cpu(t)) return std::nullopt;
  if (t.rank() < 2 || t.rank() > added.batch.size() + 2) return std::nullopt;
  Sizes own(added.batch.size() + 2 - t.rank(), 1);
  own.insert(own.end(), t.sizes.begin(), t.sizes.end());
  Sizes sizes;
  size_t next = 0;
  for (size_t d = 0; d < added.batch.size(); ++d) {
    int64_t left = added.batch[d].value();
    const bool last = d + 1 == added.batch.size(), one = own[d].is_const(1);
    if (left == 1 && !last && !(next < to.size() && to[next].is_const(1))) continue;
    do {
      if (next == to.size() || left % to[next].value() != 0) return std::nullopt;
      left /= to[next].value();
      sizes.push_back(one ? sym::Expr(1) : to[next]);
      ++next;
    } while (left > 1 || (last && next < to.size()));
  }
  if (next != to.size()) return std::nullopt;
  sizes.push_back(own[own.size() - 2]);
  sizes.push_back(own.back());
  return densely(r, r.b.reshape(added.bias, sizes));
}

bool fuse(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& providers = *static_cast<const Providers*>(user);
  const TensorType out = r.b.type(n.outs[0]);
  if ((!providers.own_f32 && !providers.own_bf16) || !on_cpu(out)) return false;
  if (is_reduced(out.dtype) && providers.strict_numerics) return false;
  ValueId v = ops::as_value(n.args[0]);
  const Node* softmax = nullptr;
  while (true) {
    const Node* d = r.def(v);
    if (!d || r.uses(v) != 1) return false;
    if (d->op->name == "aten._softmax.default") {
      softmax = d;
      break;
    }
    if (d->op->name != "prim.reshape" && d->op->name != "prim.copy" && !is_cast(*d, r)) return false;
    const ValueId x = ops::as_value(d->args[0]);
    if (!same_matrix(r.b.type(x), r.b.type(v))) return false;
    v = x;
  }
  const ValueId scores = ops::as_value(softmax->args[0]);
  if (ops::wrap_dim(ops::as_int(softmax->args[1]), r.b.rank(scores)) + 1 != static_cast<int64_t>(r.b.rank(scores)))
    return false;
  Scores s;
  if (!follow_scores(r, scores, s) || s.batch.empty() || s.batch.size() > kMaxBatchDims) return false;

  ValueId q = ops::as_value(s.product.args[0]), kt = ops::as_value(s.product.args[1]), value = ops::as_value(n.args[1]);
  const TensorType left = r.b.type(q), right = r.b.type(kt), values = r.b.type(value);
  if (left.dtype != out.dtype || right.dtype != out.dtype || !all_const(left.sizes) || !all_const(right.sizes) ||
      !all_const(values.sizes) ||
      !suits(providers, out.dtype, left.sizes[1].value(), right.sizes[2].value(), left.sizes[2].value(),
             values.sizes[2].value()))
    return false;
  Values biases;
  for (const Added& added : s.added) {
    const TensorType t = r.b.type(added.bias);
    if (t.rank() < 2 || !sym::known_eq(t.sizes.back(), right.sizes[2]) ||
        !(t.sizes[t.rank() - 2].is_const(1) || sym::known_eq(t.sizes[t.rank() - 2], left.sizes[1])))
      return false;
  }
  for (const Added& added : s.added) {
    const auto bias = fit_bias(r, added, s.batch);
    if (!bias) return false;
    biases.push_back(*bias);
  }
  q = with_batch(r, q, s.batch, &s.scale);
  const size_t rank = s.batch.size() + 2;
  const ValueId k =
      r.b.transpose(with_batch(r, kt, s.batch), static_cast<int64_t>(rank) - 1, static_cast<int64_t>(rank) - 2);
  const ValueId result = emit(r, densely(r, q), densely(r, k), densely(r, with_batch(r, value, s.batch)), biases,
                              s.scale, /*causal=*/false, /*zero_if_none=*/false);
  results = {r.b.reshape(result, out.sizes)};
  return true;
}

// ---- What stays a product with softmax's weights ----

// `v` holds the results of a softmax, perhaps in another order, scaled, with some left out.
bool holds_weights(Rewriter& r, ValueId v, int steps) {
  const Node* n = r.def(v);
  if (!n || steps == 0) return false;
  if (n->op->name == "aten._softmax.default") return true;
  static constexpr std::string_view kKeeps[] = {"prim.reshape",    "prim.permute",       "prim.copy",
                                                "prim.broadcast",  "aten.clone.default", "aten.native_dropout.default",
                                                "aten.div.Tensor", "aten.mul.Tensor"};
  if (std::find(std::begin(kKeeps), std::end(kKeeps), n->op->name) == std::end(kKeeps)) return false;
  const Node kept = *n;
  if (holds_weights(r, ops::as_value(kept.args[0]), steps - 1)) return true;
  const auto* other = kept.op->name == "aten.mul.Tensor" ? std::get_if<Ref>(&kept.args[1]) : nullptr;
  return other && holds_weights(r, other->id, steps - 1);
}

// Finite masks make weights of 1e-44, with which the library takes ten times as long.
bool flush(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& providers = *static_cast<const Providers*>(user);
  const ValueId a = ops::as_value(n.args[0]), b = ops::as_value(n.args[1]);
  const TensorType type = r.b.type(n.outs[0]);
  if (providers.strict_numerics || type.dtype != DType::kF32 || !on_cpu(r.b.type(a)) || !on_cpu(r.b.type(b)))
    return false;
  constexpr int kSteps = 8;
  if (!holds_weights(r, a, kSteps) && !holds_weights(r, b, kSteps)) return false;
  results = {r.b.emit("flashover.bmm_flushed.default", {Ref{a}, Ref{b}}, type)};
  return true;
}

// ---- A softmax whose results only meet products ----

struct Flushing {
  const Providers& providers;
  std::vector<char> sums_only;  // by value: whatever becomes of it is multiplied and added up
};

// Numbers near 0 are as good as 0 where nothing but sums of products is made of them.
std::vector<char> find_sums_only(const Graph& g) {
  static constexpr std::string_view kProducts[] = {"aten.bmm.default", "aten.mm.default",
                                                   "flashover.bmm_flushed.default"};
  static constexpr std::string_view kKeeps[] = {"prim.reshape",
                                                "prim.permute",
                                                "prim.copy",
                                                "prim.broadcast",
                                                "prim.slice",
                                                "prim.convert",
                                                "aten.clone.default",
                                                "aten._to_copy.default",
                                                "aten.native_dropout.default",
                                                "aten.div.Tensor",
                                                "aten.mul.Tensor"};
  const auto among = [](const auto& names, std::string_view name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  std::vector<char> sums_only(g.values.size(), 1);
  for (const Output& o : g.outputs)
    if (o.value != kNoValue) sums_only[static_cast<size_t>(o.value)] = 0;
  for (const Mutation& m : g.mutations) sums_only[static_cast<size_t>(m.value)] = 0;
  for (size_t i = g.nodes.size(); i-- > 0;) {
    const Node& n = g.nodes[i];
    const bool product = among(kProducts, n.op->name), backward = n.op->name == "aten._softmax_backward_data.default";
    for (size_t k = 0; k < n.args.size(); ++k) {
      const bool keeps = among(kKeeps, n.op->name) && (k == 0 || n.op->name == "aten.mul.Tensor") &&
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
  if (flushing.providers.strict_numerics || !flushing.sums_only[static_cast<size_t>(v)] || !on_cpu(type) ||
      type.rank() == 0 || !(type.dtype == DType::kF32 || is_reduced(type.dtype)))
    return false;
  if (std::any_of(type.sizes.begin(), type.sizes.end(), [](sym::Expr s) { return s.is_const(0); })) return false;
  const std::vector<int64_t> dim{ops::wrap_dim(ops::as_int(n.args[1]), type.rank())};
  constexpr double kLeast = -87.33;
  const ValueId x = r.b.convert(in, DType::kF32), off = r.b.sub(x, r.b.amax(x, dim, true));
  const ValueId e = r.b.exp(r.b.where(r.b.lt(off, r.b.full_like(off, kLeast)), r.b.full_like(off, -INFINITY), off));
  results = {r.b.convert(r.b.div(e, r.b.sum(e, dim, true)), type.dtype)};
  return true;
}

// ---- ATen's operator ----

// (query, key, value, ..., dropout_p, is_causal, attn_mask, scale) of it or, behind others, of its backward.
struct Flash {
  ValueId q, k, v;
  RefList biases;
  double scale = 1;
  bool causal = false;
};

std::optional<Flash> match_flash(Rewriter& r, const Node& n, const Providers& providers, size_t first, size_t options) {
  Flash f{
      .q = ops::as_value(n.args[first]), .k = ops::as_value(n.args[first + 1]), .v = ops::as_value(n.args[first + 2])};
  const TensorType query = r.b.type(f.q), key = r.b.type(f.k), value = r.b.type(f.v);
  const auto fits = [&](const TensorType& t) {
    return on_cpu(t) && t.rank() == 4 && dense_last(t) && t.dtype == query.dtype &&
           sym::known_eq(t.sizes[0], query.sizes[0]) && sym::known_eq(t.sizes[1], query.sizes[1]);
  };
  if (!fits(query) || !fits(key) || !fits(value) || !ops::is_number(n.args[options], 0)) return std::nullopt;
  if (!suits(providers, query.dtype, query.sizes[2].value(), key.sizes[2].value(), query.sizes[3].value(),
             value.sizes[3].value()))
    return std::nullopt;
  if (const auto mask = ops::as_optional_value(n.args[options + 2])) {
    const TensorType m = r.b.type(*mask);
    if (!on_cpu(m) || m.rank() < 2 || m.rank() > 4 || !sym::known_eq(m.sizes.back(), key.sizes[2]) ||
        (m.dtype != DType::kF32 && m.dtype != DType::kBF16) || !dense_last(m))
      return std::nullopt;
    f.biases.push_back(Ref{*mask});
  }
  const Arg& scale = n.args[options + 3];
  f.scale = is_none(scale) ? 1 / std::sqrt(static_cast<double>(query.sizes[3].value())) : ops::as_double(scale);
  f.causal = ops::as_bool(n.args[options + 1]);
  return f;
}

bool replace_flash(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto f = match_flash(r, n, *static_cast<const Providers*>(user), 0, 3);
  if (!f) return false;
  std::vector<Arg> args{Ref{f->q}, Ref{f->k}, Ref{f->v}, f->biases, f->scale, f->causal, /*zero_if_none=*/true};
  const TensorType out = heads_inside(r.b.type(f->q), r.b.size(f->v, -1));
  results.assign(n.outs.size(), kNoValue);
  if (n.outs.size() > 1 && n.outs[1] != kNoValue && r.uses(n.outs[1]) > 0)
    results = r.b.emit_all("flashover.attention_kept.default", std::move(args), {out, r.b.type(n.outs[1])});
  else
    results[0] = r.b.emit("flashover.attention.default", std::move(args), out);
  return true;
}

// (grad, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale)
bool replace_flash_backward(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto f = match_flash(r, n, *static_cast<const Providers*>(user), 1, 6);
  if (!f || r.b.dtype(f->q) != DType::kBF16) return false;
  const ValueId out = ops::as_value(n.args[4]);
  if (!dense_last(r.b.type(out))) return false;
  std::vector<TensorType> types;
  for (ValueId v : {f->q, f->k, f->v}) types.push_back(heads_inside(r.b.type(v), r.b.size(v, -1)));
  results =
      r.b.emit_all("flashover.attention_backward.default",
                   {n.args[0], Ref{f->q}, Ref{f->k}, Ref{f->v}, Ref{out}, n.args[5], f->biases, f->scale, f->causal},
                   std::move(types));
  return true;
}

constexpr RewriteRule kFuse[] = {
    {"aten.bmm.default", "softmax(q k^T * scale + biases) v", fuse},
    {"aten.bmm.default", "weights times something: numbers near 0 count as 0", flush},
};
constexpr RewriteRule kFlush[] = {
    {"aten._softmax.default", "weights of products alone: exp is never a denormal number", flush_softmax}};
constexpr RewriteRule kOwn[] = {
    {"aten._scaled_dot_product_flash_attention_for_cpu.default", "ATen's flash attention", replace_flash},
    {"aten._scaled_dot_product_flash_attention_for_cpu_backward.default", "its backward", replace_flash_backward}};

}  // namespace

Graph fuse_attention(Graph g, const Providers& providers) {
  g = rewrite(std::move(g), kFuse, &providers);
  const Flushing flushing{providers, find_sums_only(g)};
  return rewrite(std::move(g), kFlush, &flushing);
}
Graph own_attention(Graph g, const Providers& providers) { return rewrite(std::move(g), kOwn, &providers); }

}  // namespace flashover::graph
