// Operators that derivative formulas call.
#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

bool softmax_backward(In in, Types& outs) {  // (grad_output, output, dim, input_dtype)
  const TensorType *g = tensor(in, 0), *y = tensor(in, 1);
  auto d = dtype_of(arg(in, 3));
  if (!g || !y || !d || g->dtype != y->dtype || *d != g->dtype || !same_sizes(g->sizes, y->sizes)) return false;
  return one(outs, fresh(*g, g->dtype, g->sizes));
}

bool zeros_of(const TensorType* like, const Arg& sizes, Types& outs) {
  auto* s = std::get_if<Sizes>(&sizes);
  return like && s && one(outs, fresh(*like, like->dtype, *s));
}
bool slice_like_backward(In in, Types& outs) { return zeros_of(tensor(in, 0), arg(in, 1), outs); }

bool embedding_dense_backward(In in, Types& outs) {  // (grad_output, indices, num_weights, ...)
  const TensorType* g = tensor(in, 0);
  auto n = size_expr(arg(in, 2));
  return g && n && g->rank() > 0 && one(outs, fresh(*g, g->dtype, {*n, g->sizes.back()}));
}

}  // namespace

void add_backward(Table& t) {
  t.add("_softmax_backward_data.default", OpKind::kReduction, softmax_backward);
  t.add("_log_softmax_backward_data.default", OpKind::kReduction, softmax_backward);
  for (const char* name : {"slice_backward.default", "select_backward.default", "diagonal_backward.default"})
    t.add(name, OpKind::kIndex, slice_like_backward);
  t.add("embedding_dense_backward.default", OpKind::kIndex, embedding_dense_backward);
}

}  // namespace flashover::ops::aten
