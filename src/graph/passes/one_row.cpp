// Rewrite rules from library calls to sums of products.
#include "graph/passes/one_row.h"

#include <cmath>
#include <limits>

#include "graph/analysis/devices.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

constexpr int64_t kKeysOfOneRow = 8192;

bool is_summable(DType d) { return d == DType::kF32 || is_reduced(d); }

// row [1, k] times matrix [k, n], as [n] numbers in f32; nothing where the matrix' columns do not lie side by side.
std::optional<ValueId> row_times_matrix(Rewriter& r, ValueId row, ValueId matrix) {
  const TensorType x = r.b.type(row), y = r.b.type(matrix);
  if (x.device.type != DeviceType::kCUDA || !is_summable(x.dtype) || x.dtype != y.dtype || x.rank() != 2 ||
      y.rank() != 2 || !x.sizes[0].is_const(1) || !all_const(y.sizes) || !y.strides[0].is_const(1))
    return std::nullopt;
  const sym::Expr inner = y.sizes[0], columns = y.sizes[1];
  if (!inner.is_const() || inner.value() < 64 || columns.is_const(1)) return std::nullopt;
  const ValueId a = r.b.expand(r.b.convert(row, DType::kF32), {columns, inner});
  const ValueId b = r.b.convert(transposed(r, matrix), DType::kF32);
  return r.b.sum(r.b.mul(a, b), {1});
}

bool mm_of_row(Rewriter& r, const Node& n, Values& results, const void*) {
  const auto sum = row_times_matrix(r, ops::as_value(n.args[0]), ops::as_value(n.args[1]));
  if (!sum) return false;
  const TensorType out = r.b.type(n.outs[0]);
  results = {r.b.reshape(r.b.convert(*sum, out.dtype), out.sizes)};
  return true;
}

// bias + row @ matrix in f32; n: addmm or _addmm_activation.
std::optional<ValueId> biased(Rewriter& r, const Node& n) {
  const ValueId bias = ops::as_value(n.args[0]);
  if (!ops::is_number(n.args[3], 1) || !ops::is_number(n.args[4], 1) || !is_summable(r.b.dtype(bias)))
    return std::nullopt;
  const auto sum = row_times_matrix(r, ops::as_value(n.args[1]), ops::as_value(n.args[2]));
  if (!sum) return std::nullopt;
  const Sizes sizes = r.b.sizes(n.outs[0]);
  const ValueId added = r.b.expand(r.b.convert(bias, DType::kF32), sizes);
  return r.b.add(r.b.reshape(*sum, sizes), added);
}

bool addmm_of_row(Rewriter& r, const Node& n, Values& results, const void*) {
  const auto sum = biased(r, n);
  if (!sum) return false;
  results = {r.b.convert(*sum, r.b.dtype(n.outs[0]))};
  return true;
}

bool relu_of_row(Rewriter& r, const Node& n, Values& results, const void*) {
  if (ops::as_bool(n.args[5])) return false;  // GELU: cuda_library makes none
  const auto sum = biased(r, n);
  if (!sum) return false;
  const ValueId zero = r.b.full_like(*sum, 0.0);
  results = {r.b.convert(r.b.where(r.b.lt(*sum, zero), zero, *sum), r.b.dtype(n.outs[0]))};
  return true;
}

// [batch, heads, ...] over [batch, groups, heads / groups, ...].
ValueId grouped(Rewriter& r, ValueId x, sym::Expr groups) {
  Sizes sizes = r.b.sizes(x);
  const sym::Expr each = sym::floordiv(sizes[1], groups);
  sizes[1] = groups;
  sizes.insert(sizes.begin() + 2, each);
  return r.b.reshape(x, sizes);
}

// What a mask adds to scores [batch, groups, heads, keys], or which of them it leaves; it broadcasts.
ValueId masked(Rewriter& r, ValueId scores, ValueId mask) {
  const Sizes sizes = r.b.sizes(scores);
  const TensorType type = r.b.type(mask);
  const auto size = [&](size_t from_right) {
    return type.rank() < from_right ? sym::Expr(1) : type.sizes[type.rank() - from_right];
  };
  const bool by_head = !size(3).is_const(1);
  const Sizes own = {size(4), by_head ? sizes[1] : 1, by_head ? sizes[2] : 1, size(1)};
  const ValueId m = r.b.expand(r.b.reshape(mask, own), sizes);
  if (type.dtype == DType::kBool)
    return r.b.where(m, scores, r.b.full_like(scores, -std::numeric_limits<double>::infinity()));
  return r.b.add(scores, r.b.convert(m, DType::kF32));
}

bool broadcasts_to(const TensorType& mask, const Sizes& scores) {
  if (mask.rank() < 2 || mask.rank() > scores.size()) return false;
  for (size_t d = 0; d < mask.rank(); ++d)
    if (!mask.sizes[d].is_const(1) && !sym::known_eq(mask.sizes[d], scores[scores.size() - mask.rank() + d]))
      return false;
  return true;
}

// (query, key, value, mask, dropout, causal, scale, gqa)
bool attention_of_row(Rewriter& r, const Node& n, Values& results, const void*) {
  const ValueId query = ops::as_value(n.args[0]), key = ops::as_value(n.args[1]), value = ops::as_value(n.args[2]);
  const TensorType q = r.b.type(query), k = r.b.type(key), v = r.b.type(value), out = r.b.type(n.outs[0]);
  if (q.device.type != DeviceType::kCUDA || !is_summable(q.dtype) || q.rank() != 4 || !q.sizes[2].is_const(1) ||
      !k.sizes[1].is_const() || !q.sizes[1].is_const() || k.sizes[2].hint() > kKeysOfOneRow ||
      (ops::as_bool(n.args[5]) && !k.sizes[2].is_const(1)))
    return false;
  const auto mask = ops::as_optional_value(n.args[3]);
  if (mask && !broadcasts_to(r.b.type(*mask), {q.sizes[0], q.sizes[1], 1, k.sizes[2]})) return false;
  const std::optional<double> given = known_number(r, n.args[6]);
  const bool has_scale = !std::holds_alternative<None>(n.args[6]);
  if ((has_scale && !given) || !q.sizes[3].is_const()) return false;
  const double scale = given ? *given : 1 / std::sqrt(static_cast<double>(q.sizes[3].value()));
  const sym::Expr groups = k.sizes[1], each = sym::floordiv(q.sizes[1], groups), keys = k.sizes[2];
  const auto wide = [&](ValueId x, const Sizes& sizes) {  // [batch, groups, 1, keys, width]
    return r.b.expand(r.b.unsqueeze(r.b.convert(x, DType::kF32), 2), sizes);
  };
  const Sizes products = {q.sizes[0], groups, each, keys, q.sizes[3]};
  const ValueId rows = r.b.expand(grouped(r, r.b.convert(query, DType::kF32), groups), products);
  ValueId scores = r.b.sum(r.b.mul(rows, wide(key, products)), {4});
  scores = r.b.mul(scores, r.b.full_like(scores, scale));
  if (mask) scores = masked(r, scores, *mask);
  const ValueId top = r.b.amax(scores, {3}, true);
  const ValueId hidden = r.b.eq(top, r.b.full_like(top, -std::numeric_limits<double>::infinity()));
  const ValueId from = r.b.where(hidden, r.b.full_like(top, 0.0), top);
  const ValueId weights = r.b.exp(r.b.sub(scores, r.b.expand(from, r.b.sizes(scores))));
  const ValueId total = r.b.sum(weights, {3}, true);
  const ValueId some = r.b.where(hidden, r.b.full_like(total, 1.0), total);
  const Sizes parts = {q.sizes[0], groups, each, keys, v.sizes[3]};
  const ValueId values = wide(value, parts);
  const ValueId sum = r.b.sum(r.b.mul(r.b.expand(r.b.unsqueeze(weights, 4), parts), values), {3});
  const ValueId mean = r.b.div(sum, r.b.expand(some, r.b.sizes(sum)));
  results = {r.b.reshape(r.b.convert(mean, out.dtype), out.sizes)};
  return true;
}

constexpr RewriteRule kRules[] = {
    {op::mm, "row @ matrix -> sums along the matrix' columns", mm_of_row},
    {op::addmm, "bias + row @ matrix -> the same", addmm_of_row},
    {op::_addmm_activation, "relu(bias + row @ matrix) -> the same", relu_of_row},
    {op::scaled_dot_product_attention, "attention of one query -> sums of products", attention_of_row},
    {"flashover.attention_of_any_size.default", "the same over symbols", attention_of_row},
};

}  // namespace

Graph one_row(Graph g) { return uses_cuda(g) ? rewrite(std::move(g), kRules) : g; }

}  // namespace flashover::graph
