// Losses.
#include "graph/decompose/rules.h"

namespace flashover::graph::rules {
namespace {

// reduction: 0 none, 1 mean, 2 sum
bool reduce(Builder& b, ValueId x, int64_t reduction, DType d, Outs& outs) {
  if (reduction != 0) {
    ValueId total = b.sum(x, b.all_dims(x));
    auto count = b.type(x).numel().as_const();
    x = reduction == 2 ? total : b.div(total, constant(b, total, static_cast<double>(*count)));
  }
  return done(b, x, d, outs);
}
template <size_t at>
std::optional<int64_t> reduction(Builder& b, const Node& n) {
  auto r = integer(arg(n, at));
  DType d = result(b, n).dtype;
  if (!r || *r < 0 || *r > 2 || !is_floating(d)) return std::nullopt;
  for (size_t i = 0; i < 2; ++i)
    if (!type(b, n, i).numel().is_const()) return std::nullopt;
  return r;
}

bool mse_loss(Builder& b, const Node& n, Outs& outs) {
  auto r = reduction<2>(b, n);
  if (!r) return false;
  DType d = result(b, n).dtype;
  ValueId off = b.sub(b.convert(in(n, 0), math(d)), b.convert(in(n, 1), math(d)));
  return reduce(b, b.mul(off, off), *r, d, outs);
}
template <bool huber>
bool smooth_l1(Builder& b, const Node& n, Outs& outs) {  // (self, target, reduction, beta or delta)
  auto r = reduction<2>(b, n);
  auto beta = number(arg(n, 3));
  if (!r || !beta || *beta <= 0) return false;
  DType d = result(b, n).dtype;
  ValueId z = b.abs(b.sub(b.convert(in(n, 0), math(d)), b.convert(in(n, 1), math(d))));
  ValueId limit = constant(b, z, *beta), half = constant(b, z, 0.5);
  ValueId near = b.mul(b.mul(half, z), z);
  if (!huber) near = b.div(near, limit);
  ValueId far = b.sub(z, constant(b, z, 0.5 * *beta));
  if (huber) far = b.mul(far, limit);
  return reduce(b, b.where(b.lt(z, limit), near, far), *r, d, outs);
}

// Negative log likelihood without class weights. On the CPU the operator reads one number a row and stays; on a GPU it would keep the
// log probabilities, all of them, from being fused away.
struct Likelihood {
  int64_t reduction = 0, ignored = 0;
  sym::Expr classes = 0;
};
std::optional<Likelihood> likelihood(Builder& b, const Node& n, size_t self, size_t target, size_t weight) {
  const TensorType &x = type(b, n, self), &t = type(b, n, target);
  if (x.device.type != DeviceType::kCUDA || has(n, weight) || t.dtype != DType::kI64) return std::nullopt;
  if (x.rank() != 2 || t.rank() != 1 || !x.numel().is_const() || x.numel().is_const(0)) return std::nullopt;
  auto r = integer(arg(n, weight + 1)), ignored = integer(arg(n, weight + 2));
  if (!r || *r < 0 || *r > 2 || !ignored) return std::nullopt;
  return Likelihood{*r, *ignored, x.sizes[1]};
}
ValueId counted(Builder& b, ValueId target, int64_t ignored) { return b.ne(target, b.scalar_like(target, sym::Expr(ignored))); }

bool nll_loss(Builder& b, const Node& n, Outs& outs) {  // (self, target, weight, reduction, ignore_index) -> loss, total weight
  const auto l = likelihood(b, n, 0, 1, 2);
  if (!l) return false;
  const DType d = result(b, n).dtype;
  const ValueId x = in(n, 0), target = in(n, 1), real = counted(b, target, l->ignored);
  const ValueId at = b.where(real, target, b.scalar_like(target, sym::Expr(0)));
  const ValueId picked = b.convert(b.squeeze(b.gather(x, 1, b.unsqueeze(at, 1)), 1), math(d));
  const ValueId each = b.where(real, b.neg(picked), constant(b, picked, 0));
  const ValueId weight = b.sum(b.convert(real, math(d)), {0});
  if (l->reduction == 0) {
    outs = {b.convert(each, d), dead(n, 1) ? kNoValue : b.full({}, Arg(0.0), d, result(b, n, 1).device)};
    return true;
  }
  const ValueId total = b.sum(each, {0});
  outs = {b.convert(l->reduction == 2 ? total : b.div(total, weight), d), dead(n, 1) ? kNoValue : b.convert(weight, d)};
  return true;
}
// (grad, self, target, weight, reduction, ignore_index, total_weight)
bool nll_loss_backward(Builder& b, const Node& n, Outs& outs) {
  const auto l = likelihood(b, n, 1, 2, 3);
  if (!l) return false;
  const DType d = result(b, n).dtype, m = math(d);
  const ValueId target = in(n, 2), real = counted(b, target, l->ignored);
  ValueId g = b.convert(in(n, 0), m);
  if (l->reduction == 1) g = b.div(g, b.convert(in(n, 6), m));
  g = b.where(real, b.neg(g), constant(b, g, 0));  // [rows]
  const ValueId columns = b.iota(l->classes, sym::Expr(0), sym::Expr(1), DType::kI64, Device(type(b, n, 1).device));
  const ValueId here = b.eq(b.unsqueeze(target, 1), b.unsqueeze(columns, 0));
  return done(b, b.where(here, b.unsqueeze(g, 1), constant(b, g, 0)), d, outs);
}

}  // namespace

void add_losses(DecompositionRows& r) {
  add<nll_loss>(r, {"aten.nll_loss_forward.default"});
  add<nll_loss_backward>(r, {"aten.nll_loss_backward.default"});
  add<mse_loss>(r, {"aten.mse_loss.default"});
  add<smooth_l1<false>>(r, {"aten.smooth_l1_loss.default"});
  add<smooth_l1<true>>(r, {"aten.huber_loss.default"});
}

}  // namespace flashover::graph::rules
