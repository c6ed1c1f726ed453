// Scaled dot product attention kernels.
#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

bool flash_for_cpu(In in, Types& outs) {
  const TensorType *q = tensor(in, 0), *k = tensor(in, 1), *v = tensor(in, 2);
  if (!q || !k || !v || q->rank() != 4 || k->rank() != 4 || v->rank() != 4 || !is_floating(q->dtype)) return false;
  if (k->dtype != q->dtype || v->dtype != q->dtype) return false;
  // ATen takes its plain way where there is nothing to attend to; a batch may be empty.
  for (size_t d = 1; d < 4; ++d)
    if (q->sizes[d].is_const(0) || k->sizes[d].is_const(0)) return false;
  if (!sym::known_eq(q->sizes[3], v->sizes[3]) || !sym::known_eq(k->sizes[3], q->sizes[3])) return false;
  DType accumulator = is_reduced(q->dtype) ? DType::kF32 : q->dtype;
  TensorType out;
  if (!fresh_like(*q, q->dtype, std::nullopt, out)) return false;
  // The log-sum-exp is computed as (batch, query, head) and handed out with the last two swapped.
  TensorType lse = fresh(*q, accumulator, {q->sizes[0], q->sizes[2], q->sizes[1]});
  std::swap(lse.sizes[1], lse.sizes[2]);
  std::swap(lse.strides[1], lse.strides[2]);
  outs = {std::move(out), std::move(lse)};
  return true;
}

// (grad_out, query, key, value, ...): each gradient is computed as (batch, length, head, size) and handed out with the
// middle dims swapped.
bool flash_for_cpu_backward(In in, Types& outs) {
  for (size_t i = 1; i <= 3; ++i) {
    const TensorType* x = tensor(in, i);
    if (!x || x->rank() != 4 || !is_floating(x->dtype) || has_zero_size(*x)) return false;
    TensorType gradient = fresh(*x, x->dtype, {x->sizes[0], x->sizes[2], x->sizes[1], x->sizes[3]});
    std::swap(gradient.sizes[1], gradient.sizes[2]);
    std::swap(gradient.strides[1], gradient.strides[2]);
    outs.push_back(std::move(gradient));
  }
  return true;
}

// One of query, key and value: (batch, head, length, size) of a dtype that CUDA's kernels take.
bool is_operand(const TensorType* t) { return t && t->rank() == 4 && is_floating(t->dtype) && !has_zero_size(*t); }

// Computed as (batch, length, head, size) and handed out with the middle dims swapped.
TensorType middle_swapped(const TensorType& like, sym::Expr heads, sym::Expr length, sym::Expr size) {
  TensorType t = fresh(like, like.dtype, {like.sizes[0], length, heads, size});
  std::swap(t.sizes[1], t.sizes[2]);
  std::swap(t.strides[1], t.strides[2]);
  return t;
}

// (query, key, value, bias, compute_log_sumexp, ...) -> output, log_sumexp, seed, offset. The last two lie on the CPU
// or, in a CUDA graph, on the device; only operators read them.
bool efficient(In in, Types& outs) {
  const TensorType *q = tensor(in, 0), *k = tensor(in, 1), *v = tensor(in, 2);
  if (!is_operand(q) || !is_operand(k) || !is_operand(v)) return false;
  const sym::Expr rows = flag(arg(in, 4)) ? sym::ceildiv(q->sizes[2], 32) * 32 : sym::Expr(0);
  const TensorType seed = fresh(*q, DType::kI64, {});
  outs = {middle_swapped(*q, q->sizes[1], q->sizes[2], v->sizes[3]),
          fresh(*q, DType::kF32, {q->sizes[0], q->sizes[1], rows}), seed, seed};
  return true;
}

// (grad_out, query, key, value, bias, ..., 10: grad_input_mask) -> gradients of query, key, value, bias
bool efficient_backward(In in, Types& outs) {
  const TensorType *q = tensor(in, 1), *k = tensor(in, 2), *v = tensor(in, 3);
  if (!is_operand(q) || !is_operand(k) || !is_operand(v)) return false;
  const auto* mask = std::get_if<std::vector<bool>>(&arg(in, 10));
  if (!mask || mask->size() != 4 || (*mask)[3]) return false;
  for (const TensorType* t : {q, k, v}) outs.push_back(middle_swapped(*t, t->sizes[1], t->sizes[2], t->sizes[3]));
  outs.emplace_back();  // the bias has none
  return true;
}

// (grad_out, query, key, value, ...) -> gradients that lie as their tensors do
bool fused_backward(In in, Types& outs) {
  for (size_t i = 1; i <= 3; ++i) {
    const TensorType* t = tensor(in, i);
    TensorType gradient;
    if (!is_operand(t) || !fresh_like(*t, t->dtype, std::nullopt, gradient)) return false;
    outs.push_back(std::move(gradient));
  }
  return true;
}

// nn.TransformerEncoderLayer's fast path: ends in a layer norm or in the sum with the feed-forward part.
bool encoder_layer(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  return x && x->rank() == 3 && !has_zero_size(*x) && one(outs, fresh(*x, x->dtype, x->sizes));
}

}  // namespace

void add_attention(Table& t) {
  t.add("_transformer_encoder_layer_fwd.default", OpKind::kExtern, encoder_layer);
  // Random when dropout_p > 0, which the CPU kernel rejects.
  t.add("_scaled_dot_product_flash_attention_for_cpu.default", OpKind::kExtern, flash_for_cpu);
  t.add("_scaled_dot_product_flash_attention_for_cpu_backward.default", OpKind::kExtern, flash_for_cpu_backward);
  t.add("_scaled_dot_product_efficient_attention.default", OpKind::kExtern, efficient).nondeterministic = true;
  // torch tags some of these as random: they draw nothing, the seed and offset of the forward come as arguments.
  t.add("_scaled_dot_product_efficient_attention_backward.default", OpKind::kExtern, efficient_backward);
  t.add("_scaled_dot_product_flash_attention_backward.default", OpKind::kExtern, fused_backward);
  t.add("_scaled_dot_product_cudnn_attention_backward.default", OpKind::kExtern, fused_backward);
  t.add("_cudnn_attention_backward.default", OpKind::kExtern, nullptr);
}

}  // namespace flashover::ops::aten
