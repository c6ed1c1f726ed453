// Type rules of flex_attention's operators.
//
//   flex_scores(q, k, scale)                        scale * q k^T in f32: [batch, query heads, queries, keys]
//   flex_attend(scores, mask, q, v, blocks, block)  softmax of the scores where the mask is true, times v; the log of the
//                                                   softmax's sum and the largest score of each row. q says the dtype and
//                                                   the layout of the result. blocks: counts and indices of the blocks of
//                                                   keys that a block of queries sees in part, and as a whole
//   flex_rows(weights, x, like, blocks, block)      weights x: [batch, query heads, queries, width], like `like`
//   flex_columns(weights, x, like, blocks, block)   weights^T x, summed over the heads that share one of `like`
//   flex_fused(lefts, rights, scales, q, v, blocks, block, captured, function)
//                                                   the same, where `function` is the text of a graph that makes the
//                                                   scores (and the mask) of products of the lefts and rights, and of
//                                                   what it captured
//   flex_fused_rows, flex_fused_columns(lefts, rights, scales, like, x, blocks, block, captured, function)
//                                                   the same of flex_rows and flex_columns: the function makes weights
#include <algorithm>
#include <numeric>

#include "ops/args.h"
#include "ops/aten/infer.h"
#include "ops/ops.h"

namespace flashover::ops {
namespace {

using aten::fresh;

// The dims in the order in which q's lie in memory, but the last one, which is the innermost.
bool like_query(const TensorType& q, TensorType& out) {
  std::vector<size_t> order(q.rank());
  std::iota(order.rbegin(), order.rend(), 0);  // of dims with equal strides the last one first
  bool known = true;
  const auto before = [&](size_t a, size_t b) {
    if (sym::known_lt(q.strides[a], q.strides[b])) return true;
    known &= sym::known_le(q.strides[b], q.strides[a]);
    return false;
  };
  std::stable_sort(order.begin(), order.end(), before);
  if (!known) return false;
  const size_t last = q.rank() - 1;
  order.erase(std::find(order.begin(), order.end(), last));
  order.insert(order.begin(), last);
  sym::Expr stride = 1;
  for (size_t d : order) {
    out.strides[d] = stride;
    stride *= out.sizes[d];
  }
  return true;
}

bool results(const TensorType& q, const TensorType& v, std::vector<TensorType>& outs) {
  if (q.rank() != 4 || v.rank() != 4) return false;
  TensorType out = fresh(q, q.dtype, {q.sizes[0], q.sizes[1], q.sizes[2], v.sizes[3]});
  if (!like_query(q, out)) return false;
  const TensorType row =
      fresh(q, q.dtype == DType::kF64 ? DType::kF64 : DType::kF32, {q.sizes[0], q.sizes[1], q.sizes[2]});
  outs = {std::move(out), row, row};
  return true;
}

bool scores(const InferContext& in, std::vector<TensorType>& outs) {
  const TensorType &q = in.type(size_t{0}), &k = in.type(size_t{1});
  if (q.rank() != 4 || k.rank() != 4 || q.dtype != k.dtype) return false;
  outs = {
      fresh(q, q.dtype == DType::kF64 ? DType::kF64 : DType::kF32, {q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]})};
  return true;
}

bool attend(const InferContext& in, std::vector<TensorType>& outs) {
  return results(in.type(size_t{2}), in.type(size_t{3}), outs);
}

bool fused(const InferContext& in, std::vector<TensorType>& outs) {
  return results(in.type(size_t{3}), in.type(size_t{4}), outs);
}

// In like's layout.
bool sum_like(const TensorType& like, const TensorType& x, std::vector<TensorType>& outs) {
  if (like.rank() != 4 || x.rank() != 4) return false;
  TensorType out = fresh(like, like.dtype, {like.sizes[0], like.sizes[1], like.sizes[2], x.sizes[3]});
  if (!like_query(like, out)) return false;
  outs = {std::move(out)};
  return true;
}
bool sum(const InferContext& in, std::vector<TensorType>& outs) {
  return sum_like(in.type(size_t{2}), in.type(size_t{1}), outs);
}
bool fused_sum(const InferContext& in, std::vector<TensorType>& outs) {
  return sum_like(in.type(size_t{3}), in.type(size_t{4}), outs);
}

}  // namespace

void register_flex(std::vector<Row>& rows) {
  rows.push_back({.name = op::flex_scores, .infer = scores});
  rows.push_back({.name = op::flex_attend, .infer = attend});
  rows.push_back({.name = op::flex_fused, .infer = fused});
  for (const char* name : {op::flex_rows, op::flex_columns}) rows.push_back({.name = name, .infer = sum});
  for (const char* name : {op::flex_fused_rows, op::flex_fused_columns})
    rows.push_back({.name = name, .infer = fused_sum});
}

}  // namespace flashover::ops
