// Scaled dot product attention kernels of the CPU.
#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

bool flash_for_cpu(In in, Types& outs) {
  const TensorType *q = tensor(in, 0), *k = tensor(in, 1), *v = tensor(in, 2);
  if (!q || !k || !v || q->rank() != 4 || k->rank() != 4 || v->rank() != 4 || !is_floating(q->dtype)) return false;
  if (k->dtype != q->dtype || v->dtype != q->dtype || has_zero_size(*q)) return false;
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
}

}  // namespace flashover::ops::aten
