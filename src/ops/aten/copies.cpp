// Copies, casts and fills.
#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

bool to_copy(In in, Types& outs) {  // (self, dtype, layout, device, pin_memory, non_blocking, memory_format)
  const TensorType* x = tensor(in, 0);
  if (auto* l = std::get_if<Layout>(&arg(in, 2)); l && *l != Layout::kStrided) return false;
  TensorType out;
  if (!x || flag(arg(in, 4))) return false;
  if (!fresh_like(*x, dtype_of(arg(in, 1)).value_or(x->dtype), format_of(arg(in, 6)), out)) return false;
  if (auto* d = std::get_if<Device>(&arg(in, 3))) out.device = *d;
  return one(outs, std::move(out));
}
bool clone(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  TensorType out;
  return x && fresh_like(*x, x->dtype, format_of(arg(in, 1)), out) && one(outs, std::move(out));
}
bool dense_copy(In in, Types& outs) {  // fill, zero: empty_like, then written
  const TensorType* x = tensor(in, 0);
  TensorType out;
  return x && fresh_like(*x, x->dtype, std::nullopt, out) && one(outs, std::move(out));
}
bool self(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  return x && one(outs, *x);
}
bool copy_(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *y = tensor(in, 1);
  if (!x || !y) return false;
  auto sizes = broadcast(x->sizes, y->sizes);
  return sizes && same_sizes(*sizes, x->sizes) && one(outs, *x);
}
bool fill_(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (const TensorType* v = tensor(in, 1); v && v->rank() != 0) return false;
  return x && one(outs, *x);
}

}  // namespace

void add_copies(Table& t) {
  t.add("_to_copy.default", OpKind::kPointwise, to_copy);
  t.add("clone.default", OpKind::kPointwise, clone);
  t.add("fill.Scalar", OpKind::kPointwise, dense_copy);
  t.add("fill.Tensor", OpKind::kPointwise, dense_copy);
  t.add("zero.default", OpKind::kPointwise, dense_copy);
  auto writes_self = [&](const char* name, InferRule f, const char* functional) {
    Row& row = t.add(name, OpKind::kPointwise, f);
    row.functional = functional;
    row.mutates = 1;
  };
  writes_self("copy_.default", copy_, "aten.copy.default");
  writes_self("fill_.Scalar", fill_, "aten.fill.Scalar");
  writes_self("fill_.Tensor", fill_, "aten.fill.Tensor");
  writes_self("zero_.default", self, "aten.zero.default");
}

}  // namespace flashover::ops::aten
