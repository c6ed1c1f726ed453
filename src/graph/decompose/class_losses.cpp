// Losses over class numbers. What is picked by a target is read by gather; its gradient is a comparison with the
// class's number, so that no scatter is needed and the softmax around it joins in.
#include "graph/decompose/rules.h"
#include "ops/names.h"

namespace flashover::graph::rules {
namespace {

// [N, C, ...] and [N, ...]; the operators without a batch are given one.
struct Targets {
  ValueId x, target, valid;  // the target with a channel dim; valid: bool, likewise
  int64_t dim;
};
bool fit(Builder& b, ValueId x, ValueId target, ValueId weight) {  // else eager raises
  const int64_t dim = b.rank(x) == 1 ? 0 : 1;
  Sizes places = b.sizes(x);
  places.erase(places.begin() + dim);
  if (weight != kNoValue && (b.dtype(weight) != b.dtype(x) || !same_sizes(b.sizes(weight), {b.size(x, dim)})))
    return false;
  return same_sizes(places, b.sizes(target));
}
std::optional<Targets> targets_of(Builder& b, ValueId x, ValueId target, ValueId weight, const Arg& ignored) {
  auto ignore = integer(ignored);
  const DType given = b.dtype(target);
  if (!is_floating(b.dtype(x)) || (given != DType::kI64 && given != DType::kU8)) return std::nullopt;  // eager raises
  if (!ignore || b.type(x).numel().is_const(0) || b.rank(x) == 0) return std::nullopt;
  if (!fit(b, x, target, weight)) return std::nullopt;
  Targets t{.x = x, .dim = b.rank(x) == 1 ? 0 : 1};
  const Device device = b.type(x).device;
  t.target = b.unsqueeze(b.convert(target, DType::kI64), t.dim);
  t.valid = b.ne(t.target, b.full({}, sym::Expr(*ignore), DType::kI64, device));
  return t;
}
ValueId zero(Builder& b, ValueId like) { return constant(b, like, 0); }

// (self, target, weight, reduction, ignore_index) -> loss, sum of weights
bool nll_loss(Builder& b, const Node& n, Outs& outs) {
  auto reduction = integer(arg(n, 3));
  const DType d = b.dtype(in(n, 0)), m = math(d);
  auto t = reduction ? targets_of(b, in(n, 0), in(n, 1), has(n, 2) ? in(n, 2) : kNoValue, arg(n, 4)) : std::nullopt;
  if (!t) return false;
  const Device device = b.type(t->x).device;
  // An ignored target may be any number; all others are checked by the gather.
  ValueId safe = b.where(t->valid, t->target, b.full({}, sym::Expr(0), DType::kI64, device));
  ValueId picked = b.neg(b.convert(b.gather(t->x, t->dim, safe), m)), weight = kNoValue;
  if (has(n, 2)) {
    Sizes flat{b.type(safe).numel()};
    weight = b.convert(b.reshape(b.gather(in(n, 2), 0, b.reshape(safe, flat)), b.sizes(safe)), m);
    picked = b.mul(picked, weight);
  }
  Sizes sizes = b.sizes(in(n, 1));
  ValueId loss = b.reshape(b.where(t->valid, picked, zero(b, picked)), sizes);
  if (*reduction == 0 && (dead(n, 1) || b.rank(t->x) > 1)) {  // of one row ATen gives the weight all the same
    outs = {b.convert(loss, d), dead(n, 1) ? kNoValue : b.full({}, Arg(0.0), d, device)};
    return true;
  }
  ValueId counted = has(n, 2) ? b.where(t->valid, weight, zero(b, weight)) : b.convert(t->valid, m);
  Ints all;
  for (size_t i = 0; i < sizes.size(); ++i) all.push_back(static_cast<int64_t>(i));
  ValueId total = b.sum(b.reshape(counted, sizes), all), sum = b.sum(loss, all);
  const ValueId value = *reduction == 0 ? loss : *reduction == 1 ? b.div(sum, total) : sum;
  outs = {b.convert(value, d), b.convert(total, d)};
  if (dead(n, 1)) outs[1] = kNoValue;
  return true;
}

// (grad, self, target, weight, reduction, ignore_index, total_weight)
bool nll_loss_backward(Builder& b, const Node& n, Outs& outs) {
  auto reduction = integer(arg(n, 4));
  const DType d = result(b, n).dtype, m = math(d);
  auto t = reduction ? targets_of(b, in(n, 1), in(n, 2), has(n, 3) ? in(n, 3) : kNoValue, arg(n, 5)) : std::nullopt;
  if (!t) return false;
  ValueId g = b.neg(b.convert(in(n, 0), m));
  if (*reduction == 1) g = b.div(g, b.convert(in(n, 6), m));
  const Device device = b.type(t->x).device;
  Sizes classes(b.rank(t->x), 1);
  classes[t->dim] = b.size(t->x, t->dim);
  const bool of_each = *reduction == 0 && b.rank(t->x) > 1;  // of one row there is one loss, in a dimension or in none
  if (of_each ? b.rank(g) + 1 != b.rank(t->x) : !b.type(g).numel().is_const(1)) return false;
  if (of_each) {
    g = b.unsqueeze(g, t->dim);
  } else if (b.rank(g) != 0) {
    g = b.reshape(g, {});
  }
  if (has(n, 3)) g = b.mul(g, b.reshape(b.convert(in(n, 3), m), classes));
  ValueId number = b.reshape(b.iota(classes[t->dim], sym::Expr(0), sym::Expr(1), DType::kI64, device), classes);
  ValueId hit = b.bitwise_and(b.eq(t->target, number), t->valid);
  ValueId y = b.where(hit, g, zero(b, g));
  outs = {b.convert(b.expand(y, b.sizes(t->x)), d)};
  return true;
}

}  // namespace

void add_class_losses(DecompositionRows& r) {
  add<nll_loss>(r, {op::nll_loss_forward, op::nll_loss2d_forward});
  add<nll_loss_backward>(r, {op::nll_loss_backward, op::nll_loss2d_backward});
}

}  // namespace flashover::graph::rules
