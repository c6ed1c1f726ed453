// Random numbers: like their input.
#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

bool bernoulli(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  return x && one(outs, fresh(*x, x->dtype, x->sizes));
}
bool on_clone(In in, Types& outs) {  // the writing operator on a clone, which keeps the strides
  const TensorType* x = tensor(in, 0);
  TensorType out;
  return x && fresh_like(*x, x->dtype, std::nullopt, out) && one(outs, std::move(out));
}
bool dropout(In in, Types& outs) {  // (input, p, train) -> output, mask
  const TensorType* x = tensor(in, 0);
  if (!x || !is_floating(x->dtype) || !contiguous(*x)) return false;
  outs = {fresh(*x, x->dtype, x->sizes), fresh(*x, DType::kBool, x->sizes)};
  return true;
}
bool written(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  return x && one(outs, *x);
}

}  // namespace

void add_random(Table& t) {
  auto row = [&](const char* name, InferRule f) -> Row& {
    Row& r = t.add(name, OpKind::kRandom, f);
    r.nondeterministic = true;
    return r;
  };
  row("bernoulli.default", bernoulli);
  row("native_dropout.default", dropout);
  row("bernoulli.p", bernoulli);
  row("uniform.default", on_clone);
  row("normal_functional.default", on_clone);
  auto inplace_row = [&](const char* name, const char* functional) {
    Row& r = row(name, written);
    r.mutates = 1;
    r.functional = functional;
  };
  inplace_row("bernoulli_.float", "aten.bernoulli.p");
  inplace_row("bernoulli_.Tensor", "aten.bernoulli.Tensor");
  inplace_row("normal_.default", "aten.normal_functional.default");
  inplace_row("uniform_.default", "aten.uniform.default");
  inplace_row("exponential_.default", "aten.exponential.default");
}

}  // namespace flashover::ops::aten
