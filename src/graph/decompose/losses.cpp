// Losses.
#include "graph/decompose/rules.h"
#include "ops/aten/infer.h"
#include "ops/names.h"

namespace flashover::graph::rules {
namespace {

// reduction: 0 none, 1 mean, 2 sum
bool reduce(Builder& b, ValueId x, int64_t reduction, DType d, Outs& outs) {
  if (reduction != 0) {
    ValueId total = b.sum(x, b.all_dims(x));
    x = reduction == 2 ? total : b.div(total, number_of(b, total, b.type(x).numel()));
  }
  return done(b, x, d, outs);
}
template <size_t at>
std::optional<int64_t> reduction(Builder& b, const Node& n) {
  auto r = integer(arg(n, at));
  DType d = result(b, n).dtype;
  if (!r || *r < 0 || *r > 2 || !is_floating(d)) return std::nullopt;
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
  if (!r || !beta || !(*beta > 0)) return false;
  if (huber && !is_floating(b.dtype(in(n, 0)))) return false;  // eager's error
  DType d = result(b, n).dtype;  // of two types, that is no measure of what eager computes in
  const DType m = math(ops::aten::promote(b.dtype(in(n, 0)), b.dtype(in(n, 1))));
  ValueId z = b.abs(b.sub(b.convert(in(n, 0), m), b.convert(in(n, 1), m)));
  ValueId limit = constant(b, z, *beta), half = constant(b, z, 0.5);
  ValueId near = b.mul(b.mul(half, z), z);
  if (!huber) near = b.div(near, limit);
  ValueId far = b.sub(z, constant(b, z, 0.5 * *beta));
  if (huber) far = b.mul(far, limit);
  return reduce(b, b.where(b.lt(z, limit), near, far), *r, d, outs);
}

}  // namespace

void add_losses(DecompositionRows& r) {
  add<mse_loss>(r, {op::mse_loss});
  add<smooth_l1<false>>(r, {op::smooth_l1_loss});
  add<smooth_l1<true>>(r, {op::huber_loss});
}

}  // namespace flashover::graph::rules
