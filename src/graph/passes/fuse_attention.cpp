// Softmax of one product times another, with all views, casts and numbers between them, becomes one operator.
#include "graph/passes/fuse_attention.h"

#include <algorithm>

#include "graph/rewrite/attention.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"
#include "sym/quotient.h"

namespace flashover::graph {
namespace {

constexpr size_t kMaxBiases = 2, kMaxBatchDims = 3;

// q [batch..., queries, width], k [batch..., keys, width], v [batch..., keys, value width].
ValueId emit(Rewriter& r, ValueId q, ValueId k, ValueId v, const Values& biases, double scale, bool causal,
             bool zero_if_none) {
  RefList list;
  for (ValueId b : biases) list.push_back(Ref{b});
  return r.b.emit("flashover.attention.default", {Ref{q}, Ref{k}, Ref{v}, list, scale, causal, zero_if_none},
                  heads_inside(r.b.type(q), r.b.size(v, -1)));
}

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
  if (n.op->name != op::_to_copy && n.op->prim != Prim::convert) return false;
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
  const bool division = n.op->name == op::div_Tensor;
  if (!division && n.op->name != op::mul_Tensor) return std::nullopt;
  const auto factor = known_number(r, n.args[1]);
  if (!factor || *factor == 0) return std::nullopt;
  const ValueId x = ops::as_value(n.args[0]);
  if (!same_sizes(r.b.type(x).sizes, r.b.type(n.outs[0]).sizes)) return std::nullopt;
  return std::pair(x, division ? 1 / *factor : *factor);
}

// Down from the softmax's argument to the product, by steps that nothing else reads.
bool follow_scores(Rewriter& r, ValueId v, Scores& s) {
  s.batch = leading(r.b.type(v));
  while (true) {
    const Node* n = r.def(v);
    if (!n || r.uses(v) != 1) return false;
    const TensorType type = r.b.type(v);
    if (type.rank() - 2 > s.batch.size()) s.batch = leading(type);
    if (n->op->name == op::bmm) {
      s.product = *n;
      return true;
    }
    if (n->op->prim == Prim::reshape || n->op->prim == Prim::copy || is_cast(*n, r)) {
      v = ops::as_value(n->args[0]);
      if (!same_matrix(r.b.type(v), type)) return false;
    } else if (n->op->name == op::add_Tensor) {
      if (!ops::is_number(n->args[2], 1) || s.scale != 1 || s.added.size() == kMaxBiases) return false;
      const ValueId a = ops::as_value(n->args[0]), b = ops::as_value(n->args[1]);
      // The scores are the side that nothing else reads and that is as large as the sum; the other one may be smaller.
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
  Sizes sizes = batch;
  sizes.push_back(r.b.size(x, -2));
  sizes.push_back(r.b.size(x, -1));
  ValueId best = x;
  const DType dtype = r.b.dtype(x);
  for (ValueId v = x;;) {
    const TensorType t = r.b.type(v);
    if (const auto strides = ops::view_strides(t, sizes)) best = v;
    const Node* n = r.def(v);
    if (!n) break;
    if (n->op->prim == Prim::reshape || n->op->prim == Prim::copy) {
      v = ops::as_value(n->args[0]);
      continue;
    }
    const auto factor = scale ? scaled(r, *n) : std::nullopt;
    if (!factor || r.b.dtype(factor->first) != dtype) break;
    *scale *= factor->second;
    best = v = factor->first;
  }
  return r.b.reshape(best, sizes);
}

ValueId densely(Rewriter& r, ValueId x) {
  const TensorType t = r.b.type(x);
  return dense_last(t) ? x : r.b.emit(Prim::copy, {Ref{x}}, dense_type(t));
}

// A bias that was added to something with the leading sizes `from`, for leading sizes `to` (a finer view of the same).
std::optional<ValueId> fit_bias(Rewriter& r, const Added& added, const Sizes& to) {
  TensorType t = r.b.type(added.bias);
  if ((t.dtype != DType::kF32 && t.dtype != DType::kBF16) || t.device.type != DeviceType::kCPU) return std::nullopt;
  if (t.rank() < 2 || t.rank() > added.batch.size() + 2) return std::nullopt;
  Sizes own(added.batch.size() + 2 - t.rank(), 1);
  own.insert(own.end(), t.sizes.begin(), t.sizes.end());
  Sizes sizes;
  size_t next = 0;
  for (size_t d = 0; d < added.batch.size(); ++d) {
    sym::Expr left = added.batch[d];
    const bool last = d + 1 == added.batch.size(), one = own[d].is_const(1);
    if (left.is_const(1) && !last && !(next < to.size() && to[next].is_const(1))) continue;
    do {
      const auto rest = next == to.size() ? std::nullopt : sym::whole_quotient(left, to[next]);
      if (!rest) return std::nullopt;
      left = *rest;
      sizes.push_back(one ? sym::Expr(1) : to[next]);
      ++next;
    } while (!left.is_const(1) || (last && next < to.size()));
  }
  if (next != to.size()) return std::nullopt;
  sizes.push_back(own[own.size() - 2]);
  sizes.push_back(own.back());
  return densely(r, r.b.reshape(added.bias, sizes));
}

bool fuse(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& providers = *static_cast<const target::Providers*>(user);
  const TensorType out = r.b.type(n.outs[0]);
  if ((!providers.own_f32 && !providers.own_bf16) || out.device.type != DeviceType::kCPU) return false;
  if (is_reduced(out.dtype) && providers.strict_numerics) return false;
  ValueId v = ops::as_value(n.args[0]);
  const Node* softmax = nullptr;
  while (true) {
    const Node* d = r.def(v);
    if (!d || r.uses(v) != 1) return false;
    if (d->op->name == op::_softmax) {
      softmax = d;
      break;
    }
    if (d->op->prim != Prim::reshape && d->op->prim != Prim::copy && !is_cast(*d, r)) return false;
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
  if (left.dtype != out.dtype || right.dtype != out.dtype || !left.sizes[2].is_const() || !values.sizes[2].is_const() ||
      !suits_attention(providers, out.dtype, left.sizes[1].hint(), right.sizes[2].hint(), left.sizes[2].value(),
                       values.sizes[2].value()))  // lengths may be symbols: then typical ones decide
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
  const ValueId dense_value = densely(r, with_batch(r, value, s.batch));  // (in this order on all machines)
  const ValueId dense_key = densely(r, k);
  const ValueId result =
      emit(r, densely(r, q), dense_key, dense_value, biases, s.scale, /*causal=*/false, /*zero_if_none=*/false);
  results = {r.b.reshape(result, out.sizes)};
  return true;
}

constexpr RewriteRule kFuse[] = {{op::bmm, "softmax(q k^T * scale + biases) v", fuse}};

}  // namespace

Graph fuse_attention(Graph g, const target::Providers& providers) { return rewrite(std::move(g), kFuse, &providers); }

}  // namespace flashover::graph
