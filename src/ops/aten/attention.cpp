// Scaled dot product attention kernels of the CPU.
#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

// Computed as (batch, query, head, dim) and handed out with dims 1 and 2 swapped.
TensorType swapped(const TensorType& like, DType dtype, Sizes sizes) {
  TensorType t = fresh(like, dtype, std::move(sizes));
  std::swap(t.sizes[1], t.sizes[2]);
  std::swap(t.strides[1], t.strides[2]);
  return t;
}

bool flash_for_cpu(In in, Types& outs) {
  const TensorType *q = tensor(in, 0), *k = tensor(in, 1), *v = tensor(in, 2);
  if (!q || !k || !v || q->rank() != 4 || k->rank() != 4 || v->rank() != 4 || !is_floating(q->dtype)) return false;
  if (k->dtype != q->dtype || v->dtype != q->dtype || has_zero_size(*q)) return false;
  if (!sym::known_eq(q->sizes[3], v->sizes[3]) || !sym::known_eq(k->sizes[3], q->sizes[3])) return false;
  DType accumulator = is_reduced(q->dtype) ? DType::kF32 : q->dtype;
  outs = {swapped(*q, q->dtype, {q->sizes[0], q->sizes[2], q->sizes[1], q->sizes[3]}),
          swapped(*q, accumulator, {q->sizes[0], q->sizes[2], q->sizes[1]})};
  return true;
}

}  // namespace

void add_attention(Table& t) {
  // Random when dropout_p > 0, which the CPU kernel rejects.
  t.add("_scaled_dot_product_flash_attention_for_cpu.default", OpKind::kExtern, flash_for_cpu);
}

}  // namespace flashover::ops::aten
