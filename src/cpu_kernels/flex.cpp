// The scores of all pairs lie in memory.
#include "cpu_kernels/flex.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

namespace flashover::cpu {
namespace {

// Heads of keys, one for each head of queries.
at::Tensor for_each_query_head(const at::Tensor& x, const c10::SymInt& heads) {
  const c10::SymInt group = heads / x.sym_size(1);
  return x.unsqueeze(2)
      .expand_symint({x.sym_size(0), x.sym_size(1), group, x.sym_size(2), x.sym_size(3)})
      .reshape_symint({x.sym_size(0), heads, x.sym_size(2), x.sym_size(3)});
}

// Dims lie as the query's do, the last one innermost.
at::Tensor laid_like(const at::Tensor& q, const at::Tensor& x) {
  std::vector<int64_t> order(static_cast<size_t>(x.dim()));
  std::iota(order.begin(), order.end(), 0);
  const auto strides = q.sym_strides();
  std::stable_sort(order.begin(), order.end() - 1, [&](int64_t a, int64_t b) {
    return strides[static_cast<size_t>(a)] > strides[static_cast<size_t>(b)];
  });
  std::vector<c10::SymInt> laid(order.size());
  c10::SymInt stride = 1;
  for (size_t i = order.size(); i-- > 0; stride = stride * x.sym_size(order[i]))
    laid[static_cast<size_t>(order[i])] = stride;
  at::Tensor out = at::empty_strided_symint(x.sym_sizes(), laid, x.options());
  return out.copy_(x);
}

at::Tensor flex_scores(const at::Tensor& q, const at::Tensor& k, double scale) {
  const auto working = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor keys = for_each_query_head(k.to(working), q.sym_size(1));
  return at::mul(at::matmul(q.to(working), keys.transpose(-2, -1)), scale);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flex_attend(const at::Tensor& scores,
                                                           const std::optional<at::Tensor>& mask, const at::Tensor& q,
                                                           const at::Tensor& v,
                                                           const c10::List<std::optional<at::Tensor>>& /*blocks*/,
                                                           c10::SymIntArrayRef /*block*/) {
  const at::Tensor none = at::scalar_tensor(-INFINITY, scores.options());
  const at::Tensor seen = mask ? at::where(*mask, scores, none) : scores;
  const at::Tensor log_sum = at::logsumexp(seen, {-1});
  const at::Tensor largest = seen.amax({-1});
  const at::Tensor weights = at::softmax(seen, -1);
  const at::Tensor safe = at::where(at::eq(largest, -INFINITY).unsqueeze(-1), 0, weights).to(q.scalar_type());
  const at::Tensor out = at::matmul(safe, for_each_query_head(v.to(q.scalar_type()), q.sym_size(1)));
  return {laid_like(q, out), log_sum, largest};
}

at::Tensor flex_rows(const at::Tensor& weights, const at::Tensor& x, const at::Tensor& like,
                     const c10::List<std::optional<at::Tensor>>& /*blocks*/, c10::SymIntArrayRef /*block*/) {
  const at::Tensor sums = at::matmul(weights, for_each_query_head(x.to(weights.scalar_type()), like.sym_size(1)));
  return laid_like(like, sums.to(like.scalar_type()));
}

at::Tensor flex_columns(const at::Tensor& weights, const at::Tensor& x, const at::Tensor& like,
                        const c10::List<std::optional<at::Tensor>>& /*blocks*/, c10::SymIntArrayRef /*block*/) {
  at::Tensor sums = at::matmul(weights.transpose(-2, -1), x.to(weights.scalar_type()));
  const c10::SymInt heads = like.sym_size(1), group = sums.sym_size(1) / heads;
  sums = sums.reshape_symint({sums.sym_size(0), heads, group, sums.sym_size(2), sums.sym_size(3)}).sum(2);
  return laid_like(like, sums.to(like.scalar_type()));
}

}  // namespace

void define_flex(torch::Library& library) {
  const auto define = [&](const char* schema, const char* name, auto* function) {
    library.def(schema);
    library.impl(name, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
  };
  define("flex_scores(Tensor q, Tensor k, float scale) -> Tensor", "flex_scores", flex_scores);
  define(
      "flex_attend(Tensor scores, Tensor? mask, Tensor q, Tensor v, Tensor?[] blocks, SymInt[] block) -> "
      "(Tensor, Tensor, Tensor)",
      "flex_attend", flex_attend);
  define("flex_rows(Tensor weights, Tensor x, Tensor like, Tensor?[] blocks, SymInt[] block) -> Tensor", "flex_rows",
         flex_rows);
  define("flex_columns(Tensor weights, Tensor x, Tensor like, Tensor?[] blocks, SymInt[] block) -> Tensor",
         "flex_columns", flex_columns);
}

}  // namespace flashover::cpu
