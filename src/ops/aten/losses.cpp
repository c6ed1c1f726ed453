// Losses that reach the backend as one operator.
#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

// (self, target, reduction, ...): reduction 0 keeps the elements. mixes: into memory of the input's type, whatever the
// target's; else both have one type.
template <bool mixes>
bool elementwise_loss(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *y = tensor(in, 1);
  auto r = integer(arg(in, 2));
  if (!x || !y || !r || !is_floating(x->dtype)) return false;
  if (mixes ? is_complex(y->dtype) : x->dtype != y->dtype) return false;
  const TensorType* both[] = {x, y};
  if (!iterate_promoted(both, x->dtype, x->dtype, outs)) return false;
  if (*r != 0) outs[0] = fresh(*x, x->dtype, {});
  return true;
}

bool nll_loss(In in, Types& outs) {  // (self, target, weight, reduction, ignore_index) -> output, total_weight
  const TensorType *x = tensor(in, 0), *target = tensor(in, 1);
  auto r = integer(arg(in, 3));
  if (!x || !target || !r || !is_floating(x->dtype) || x->rank() < 1 || x->rank() > 2) return false;
  const Sizes batch(x->sizes.begin(), x->sizes.end() - 1);
  const bool none = !batch.empty() && batch[0].is_const(0);  // the mean of which is NaN
  if ((has_zero_size(*x) && !none) || !fits_classes(tensor(in, 2), x->sizes.back())) return false;
  if (x->rank() == 2 && !same_sizes(target->sizes, batch)) return false;
  outs = {fresh(*x, x->dtype, *r == 0 ? batch : Sizes{}), fresh(*x, x->dtype, {})};
  return true;
}

bool multilabel_margin(In in, Types& outs) {  // (self, target, reduction) -> output, is_target
  const TensorType *x = tensor(in, 0), *target = tensor(in, 1);
  auto r = integer(arg(in, 2));
  if (!x || !target || !r || !is_floating(x->dtype) || x->rank() > 2 || !same_sizes(x->sizes, target->sizes))
    return false;
  if (has_zero_size(*x)) return false;
  Sizes sizes;
  if (*r == 0 && x->rank() == 2) sizes = {x->sizes[0]};
  outs = {fresh(*x, x->dtype, sizes), fresh(*x, x->dtype, target->sizes)};
  return true;
}

}  // namespace

void add_losses(Table& t) {
  const auto kind = OpKind::kReduction;
  t.add("mse_loss.default", kind, elementwise_loss<false>);
  t.add("smooth_l1_loss.default", kind, elementwise_loss<false>);
  t.add("huber_loss.default", kind, elementwise_loss<true>);
  t.add("soft_margin_loss.default", kind, elementwise_loss<true>);
  t.add("nll_loss_forward.default", kind, nll_loss);
  t.add("multilabel_margin_loss_forward.default", OpKind::kExtern, multilabel_margin);
}

}  // namespace flashover::ops::aten
