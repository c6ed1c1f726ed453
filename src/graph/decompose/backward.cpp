// Operators that derivative formulas call.
#include <algorithm>
#include <cmath>

#include "graph/decompose/rules.h"
#include "ops/names.h"

namespace flashover::graph::rules {
namespace {

bool threshold_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, self, threshold)
  DType d = result(b, n).dtype, m = math(d);
  if (!scalar_fits(arg(n, 2), d)) return false;
  ValueId g = in(n, 0), x = b.convert(in(n, 1), m);
  ValueId below = b.le(x, operand_via(b, n, 2, d, m));
  return done(b, b.where(below, b.full({}, *scalar_in(sym::Expr(0), d), d, result(b, n).device), g), d, outs);
}
bool sigmoid_backward(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId g = b.convert(in(n, 0), math(d)), y = b.convert(in(n, 1), math(d));
  return done(b, b.mul(g, b.mul(b.sub(constant(b, y, 1), y), y)), d, outs);
}
bool tanh_backward(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId g = b.convert(in(n, 0), math(d)), y = b.convert(in(n, 1), math(d));
  ValueId one = constant(b, y, 1);
  return done(b, b.mul(g, b.mul(b.sub(one, y), b.add(one, y))), d, outs);
}
bool silu_backward(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId g = b.convert(in(n, 0), math(d)), x = b.convert(in(n, 1), math(d));
  ValueId s = b.sigmoid(x), one = constant(b, x, 1);
  return done(b, b.mul(b.mul(g, s), b.add(one, b.mul(x, b.sub(one, s)))), d, outs);
}
// The two tensors of an activation gradient in the dtype of the computation.
struct Pair {
  DType d;
  ValueId g, x;
};
Pair pair(Builder& b, const Node& n, size_t x = 1) {
  DType d = result(b, n).dtype;
  return {d, b.convert(in(n, 0), math(d)), b.convert(in(n, x), math(d))};
}
bool gelu_backward(Builder& b, const Node& n, Outs& outs) {
  auto* approximate = std::get_if<std::string>(&arg(n, 2));
  auto [d, g, x] = pair(b, n);
  ValueId half = constant(b, x, 0.5), one = constant(b, x, 1);
  if (approximate && *approximate == "tanh") {
    const double beta = M_SQRT2 * M_2_SQRTPI * 0.5, kappa = 0.044715;
    ValueId square = b.mul(x, x);
    ValueId t = b.tanh(b.mul(b.add(x, b.mul(b.mul(square, x), constant(b, x, kappa))), constant(b, x, beta)));
    ValueId inner = b.mul(b.add(one, b.mul(square, constant(b, x, 3 * kappa))), constant(b, x, beta));
    ValueId slope = b.mul(b.mul(b.mul(half, x), b.sub(one, b.mul(t, t))), inner);
    return done(b, b.mul(g, b.add(b.mul(half, b.add(one, t)), slope)), d, outs);
  }
  ValueId cdf = b.mul(half, b.add(one, b.erf(b.mul(x, constant(b, x, M_SQRT1_2)))));
  ValueId pdf = b.mul(b.exp(b.mul(b.mul(x, x), constant(b, x, -0.5))), constant(b, x, M_2_SQRTPI * M_SQRT1_2 * 0.5));
  return done(b, b.mul(g, b.add(cdf, b.mul(x, pdf))), d, outs);
}
// The result of a falling slope does not say which side of zero it came from: ATen refuses, and is called to say so.
bool leaky_relu_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, self, slope, self_is_result)
  auto slope = number(arg(n, 2));
  if (!slope || (flag(arg(n, 3)) && *slope < 0)) return false;
  auto [d, g, x] = pair(b, n);
  return done(b, b.where(b.gt(x, constant(b, x, 0)), g, b.mul(g, constant(b, g, *slope))), d, outs);
}
bool elu_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, alpha, scale, input_scale, is_result, self)
  auto alpha = number(arg(n, 1)), scale = number(arg(n, 2)), input = number(arg(n, 3));
  if (!alpha || !scale || !input || (flag(arg(n, 4)) && *alpha < 0)) return false;
  auto [d, g, x] = pair(b, n, 5);
  double low = *alpha * *scale;
  ValueId below = flag(arg(n, 4))
                      ? b.mul(b.mul(g, constant(b, g, *input)), b.add(x, constant(b, x, low)))
                      : b.mul(b.mul(g, constant(b, g, *input * low)), b.exp(b.mul(x, constant(b, x, *input))));
  ValueId above = b.mul(g, constant(b, g, *scale));
  return done(b, b.where(b.gt(x, constant(b, x, 0)), above, below), d, outs);  // NaN counts as below
}
// Zero where the saved value is outside an open interval.
ValueId inside(Builder& b, ValueId x, double lo, double hi, ValueId y) {
  ValueId in_range = b.bitwise_and(b.gt(x, constant(b, x, lo)), b.lt(x, constant(b, x, hi)));
  return b.where(in_range, y, constant(b, y, 0));
}
bool hardtanh_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, self, min, max)
  auto lo = number(arg(n, 2)), hi = number(arg(n, 3));
  auto [d, g, x] = pair(b, n);
  if (!lo || !hi || !is_floating(d)) return false;
  ValueId outside = b.bitwise_or(b.le(x, constant(b, x, *lo)), b.ge(x, constant(b, x, *hi)));
  return done(b, b.where(outside, constant(b, g, 0), g), d, outs);
}
bool hardsigmoid_backward(Builder& b, const Node& n, Outs& outs) {
  auto [d, g, x] = pair(b, n);
  return done(b, inside(b, x, -3, 3, b.mul(g, constant(b, g, 1.0 / 6))), d, outs);
}
bool hardswish_backward(Builder& b, const Node& n, Outs& outs) {
  auto [d, g, x] = pair(b, n);
  ValueId middle = b.mul(g, b.add(b.div(x, constant(b, x, 3)), constant(b, x, 0.5)));
  ValueId y = b.where(b.le(x, constant(b, x, -3)), constant(b, x, 0), b.where(b.ge(x, constant(b, x, 3)), g, middle));
  return done(b, y, d, outs);
}
bool softplus_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, self, beta, threshold)
  auto beta = number(arg(n, 2)), threshold = number(arg(n, 3));
  if (!beta || !threshold) return false;
  auto [d, g, x] = pair(b, n);
  ValueId scaled = b.mul(x, constant(b, x, *beta));
  return done(b, b.where(b.gt(scaled, constant(b, x, *threshold)), g, b.mul(g, b.sigmoid(scaled))), d, outs);
}
bool mish_backward(Builder& b, const Node& n, Outs& outs) {
  auto [d, g, x] = pair(b, n);
  ValueId t = b.tanh(b.log1p(b.exp(x))), one = constant(b, x, 1);
  ValueId slope = b.mul(b.mul(x, b.sigmoid(x)), b.sub(one, b.mul(t, t)));
  return done(b, b.mul(g, b.add(t, slope)), d, outs);
}
bool native_dropout_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, mask, scale)
  auto scale = number(arg(n, 2));
  auto [d, g, mask] = pair(b, n);
  if (!scale) return false;
  return done(b, b.mul(b.mul(g, mask), constant(b, g, *scale)), d, outs);
}
bool glu_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, self, dim)
  auto dim = integer(arg(n, 2));
  if (!dim) return false;
  DType d = result(b, n).dtype;
  ValueId x = b.convert(in(n, 1), math(d)), g = b.convert(in(n, 0), math(d));
  int64_t at = b.wrap(x, *dim);
  sym::Expr size = b.size(x, at), half = sym::floordiv(size, 2);
  ValueId value = b.slice(x, at, 0, half), gate = b.sigmoid(b.slice(x, at, half, size));
  ValueId first = b.mul(gate, g);
  ValueId second = b.mul(b.mul(b.mul(b.sub(constant(b, gate, 1), gate), gate), g), value);
  return done(b, b.cat({first, second}, at), d, outs);
}
// Zeros with the gradient at its place.
bool select_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, sizes, dim, index)
  auto dim = integer(arg(n, 2)), index = integer(arg(n, 3));
  TensorType t = result(b, n);
  if (!dim || !index || t.rank() == 0) return false;
  int64_t at = *dim < 0 ? *dim + static_cast<int64_t>(t.rank()) : *dim;
  sym::Expr i = *index < 0 ? t.sizes[at] + *index : sym::Expr(*index);
  Sizes lo(t.rank(), 0), hi(t.rank(), 0);
  lo[at] = i;
  hi[at] = t.sizes[at] - i - 1;
  outs = {b.pad(b.unsqueeze(in(n, 0), at), lo, hi, *scalar_in(sym::Expr(0), t.dtype))};
  return true;
}
bool slice_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, sizes, dim, start, end, step)
  auto dim = integer(arg(n, 2)), start = integer(arg(n, 3)), end = integer(arg(n, 4)), step = integer(arg(n, 5));
  TensorType t = result(b, n);
  if (!dim || !start || !end || step != 1 || t.rank() == 0) return false;
  int64_t at = *dim < 0 ? *dim + static_cast<int64_t>(t.rank()) : *dim;
  const sym::Expr size = t.sizes[at];
  sym::Expr from = *start < 0 ? size + *start : sym::Expr(*start);
  if (size.is_const()) from = std::clamp<int64_t>(from.value(), 0, size.value());
  if (!sym::known_le(0, from) || !sym::known_le(from, size)) return false;
  Sizes lo(t.rank(), 0), hi(t.rank(), 0);
  lo[at] = from;
  hi[at] = size - from - b.size(in(n, 0), at);
  if (!sym::known_le(0, hi[at])) return false;
  outs = {b.pad(in(n, 0), lo, hi, *scalar_in(sym::Expr(0), t.dtype))};
  return true;
}
bool mse_loss_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, self, target, reduction)
  auto r = integer(arg(n, 3));
  DType d = result(b, n).dtype;
  if (!r) return false;
  ValueId g = b.convert(in(n, 0), math(d));
  ValueId off = b.sub(b.convert(in(n, 1), math(d)), b.convert(in(n, 2), math(d)));
  ValueId norm = *r == 1 ? ratio(b, off, 2, type(b, n, 1).numel()) : constant(b, off, 2.0);
  return done(b, b.mul(b.mul(off, norm), g), d, outs);
}

// (grad, self, target, reduction, beta or delta): a slope that is cut off.
template <bool huber>
bool smooth_l1_backward(Builder& b, const Node& n, Outs& outs) {
  auto r = integer(arg(n, 3));
  auto limit = number(arg(n, 4));
  if (!r || !limit || !(*limit > 0)) return false;
  DType d = result(b, n).dtype;
  ValueId g = b.convert(in(n, 0), math(d));
  ValueId off = b.sub(b.convert(in(n, 1), math(d)), b.convert(in(n, 2), math(d)));
  ValueId high = constant(b, off, *limit), low = constant(b, off, -*limit);
  ValueId slope = huber ? off : b.div(off, high);
  ValueId up = huber ? high : constant(b, off, 1.0), down = huber ? low : constant(b, off, -1.0);
  slope = b.where(b.ge(off, high), up, b.where(b.le(off, low), down, slope));
  if (*r == 1) slope = b.mul(slope, ratio(b, off, 1, type(b, n, 1).numel()));
  return done(b, b.mul(slope, g), d, outs);
}

bool layer_norm_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, x, shape, mean, rstd, weight, bias, mask)
  auto* shape = std::get_if<Sizes>(&arg(n, 2));
  auto* mask = std::get_if<std::vector<bool>>(&arg(n, 7));
  ValueId x = in(n, 1);
  if (!shape || !mask || mask->size() != 3 || shape->empty() || b.type(x).numel().is_const(0)) return false;
  for (size_t i = 0; i < 3; ++i)
    if (!(*mask)[i] && !dead(n, i)) return false;
  Ints inner, outer;
  for (size_t i = 0; i < b.rank(x); ++i)
    (i < b.rank(x) - shape->size() ? outer : inner).push_back(static_cast<int64_t>(i));
  DType d = b.dtype(x), m = math(d);
  ValueId g = b.convert(in(n, 0), m), mean = b.convert(in(n, 3), m), rstd = b.convert(in(n, 4), m);
  ValueId y = b.mul(b.sub(b.convert(x, m), mean), rstd);
  outs = {kNoValue, kNoValue, kNoValue};
  if (!dead(n, 0)) {
    ValueId gw = has(n, 5) ? b.mul(g, b.convert(in(n, 5), m)) : g;
    ValueId count = number_of(b, gw, b.count(x, inner));
    ValueId mean_g = b.div(b.sum(gw, inner, true), count), mean_gy = b.div(b.sum(b.mul(gw, y), inner, true), count);
    outs[0] = b.convert(b.mul(b.sub(b.sub(gw, mean_g), b.mul(y, mean_gy)), rstd), d);
  }
  if (!dead(n, 1)) outs[1] = b.convert(b.sum(b.mul(g, y), outer), result(b, n, 1).dtype);
  if (!dead(n, 2)) outs[2] = b.convert(b.sum(g, outer), result(b, n, 2).dtype);
  return true;
}

// (grad, x, weight, running_mean, running_var, mean, rstd, training, eps, mask)
bool batch_norm_backward(Builder& b, const Node& n, Outs& outs) {
  auto* mask = std::get_if<std::vector<bool>>(&arg(n, 9));
  auto eps = number(arg(n, 8));
  const bool training = flag(arg(n, 7));
  ValueId x = in(n, 1);
  const Sizes sizes = b.sizes(x);
  if (!mask || mask->size() != 3 || !eps || sizes.size() < 2 || b.type(x).numel().is_const(0)) return false;
  if (training ? !has(n, 5) || !has(n, 6) : !has(n, 3) || !has(n, 4)) return false;
  for (size_t i = 0; i < 3; ++i)
    if (!(*mask)[i] && !dead(n, i)) return false;
  Ints over;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (i != 1) over.push_back(static_cast<int64_t>(i));
  DType d = b.dtype(x), m = math(d);
  Sizes channel(sizes.size(), 1);
  channel[1] = sizes[1];
  auto across = [&](ValueId v) { return b.reshape(v, channel); };
  ValueId g = b.convert(in(n, 0), m), mean, rstd;
  if (training) {
    mean = b.convert(in(n, 5), m);
    rstd = b.convert(in(n, 6), m);
  } else {
    mean = b.convert(in(n, 3), m);
    ValueId variance = b.convert(in(n, 4), m);
    rstd = b.rsqrt(b.add(variance, constant(b, variance, *eps)));
  }
  ValueId off = b.sub(b.convert(x, m), across(mean));
  ValueId sum_g = b.sum(g, over), sum_gx = b.sum(b.mul(g, off), over);  // unused ones go
  outs = {kNoValue, kNoValue, kNoValue};
  if (!dead(n, 0)) {
    ValueId scale = has(n, 2) ? b.mul(rstd, b.convert(in(n, 2), m)) : rstd, y = g;
    if (training) {
      ValueId part = ratio(b, rstd, 1, b.count(x, over));
      ValueId slope = b.mul(b.mul(sum_gx, part), b.mul(rstd, rstd));
      y = b.sub(b.sub(g, across(b.mul(sum_g, part))), b.mul(off, across(slope)));
    }
    outs[0] = b.convert(b.mul(y, across(scale)), d);
  }
  if (!dead(n, 1)) outs[1] = b.convert(b.mul(sum_gx, rstd), result(b, n, 1).dtype);
  if (!dead(n, 2)) outs[2] = b.convert(sum_g, result(b, n, 2).dtype);
  return true;
}

// (grad, x, mean, rstd, weight, N, C, HxW, group, mask)
bool group_norm_backward(Builder& b, const Node& n, Outs& outs) {
  auto* mask = std::get_if<std::vector<bool>>(&arg(n, 9));
  auto group = integer(arg(n, 8));
  ValueId x = in(n, 1);
  const Sizes sizes = b.sizes(x);
  if (!mask || mask->size() != 3 || !group || sizes.size() < 2 || b.type(x).numel().is_const(0)) return false;
  if (!sizes[1].is_const()) return false;
  for (size_t i = 0; i < 3; ++i)
    if (!(*mask)[i] && !dead(n, i)) return false;
  DType d = b.dtype(x), m = math(d);
  // [N, group, C / group, spatial...]
  Sizes wide = sizes, stat(sizes.size() + 1, 1), channel(sizes.size() + 1, 1);
  wide[1] = *group;
  wide.insert(wide.begin() + 2, sym::floordiv(sizes[1], *group));
  stat[0] = sizes[0], stat[1] = *group;
  channel[1] = wide[1], channel[2] = wide[2];
  Ints inner, outer = {0};
  for (size_t i = 2; i < wide.size(); ++i) inner.push_back(static_cast<int64_t>(i));
  for (size_t i = 3; i < wide.size(); ++i) outer.push_back(static_cast<int64_t>(i));
  auto widened = [&](size_t i) { return b.reshape(b.convert(in(n, i), m), wide); };
  auto per_group = [&](size_t i) { return b.reshape(b.convert(in(n, i), m), stat); };
  ValueId g = widened(0), rstd = per_group(3), y = b.mul(b.sub(widened(1), per_group(2)), rstd);
  outs = {kNoValue, kNoValue, kNoValue};
  if (!dead(n, 0)) {
    ValueId gw = has(n, 4) ? b.mul(g, b.reshape(b.convert(in(n, 4), m), channel)) : g;
    ValueId count = number_of(b, gw, b.count(gw, inner));
    ValueId mean_g = b.div(b.sum(gw, inner, true), count), mean_gy = b.div(b.sum(b.mul(gw, y), inner, true), count);
    ValueId dx = b.mul(b.sub(b.sub(gw, mean_g), b.mul(y, mean_gy)), rstd);
    outs[0] = b.convert(b.reshape(dx, sizes), d);
  }
  auto per_channel = [&](ValueId v, size_t i) {
    return b.convert(b.reshape(b.sum(v, outer), {sizes[1]}), result(b, n, i).dtype);
  };
  if (!dead(n, 1)) outs[1] = per_channel(b.mul(g, y), 1);
  if (!dead(n, 2)) outs[2] = per_channel(g, 2);
  return true;
}

template <bool log>
bool softmax_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, output, dim, input_dtype)
  auto over = dims(b, arg(n, 2), in(n, 0));
  DType d = result(b, n).dtype;
  if (!over) return false;
  ValueId g = b.convert(in(n, 0), math(d)), y = b.convert(in(n, 1), math(d));
  if (log) return done(b, b.sub(g, b.mul(b.exp(y), b.sum(g, *over, true))), d, outs);
  return done(b, b.mul(y, b.sub(g, b.sum(b.mul(g, y), *over, true))), d, outs);
}

}  // namespace

void add_backward(DecompositionRows& r) {
  add<threshold_backward>(r, {op::threshold_backward});
  add<sigmoid_backward>(r, {op::sigmoid_backward});
  add<tanh_backward>(r, {op::tanh_backward});
  add<silu_backward>(r, {op::silu_backward});
  add<gelu_backward>(r, {op::gelu_backward});
  add<leaky_relu_backward>(r, {op::leaky_relu_backward});
  add<elu_backward>(r, {op::elu_backward});
  add<hardtanh_backward>(r, {op::hardtanh_backward});
  add<hardsigmoid_backward>(r, {op::hardsigmoid_backward});
  add<hardswish_backward>(r, {op::hardswish_backward});
  add<softplus_backward>(r, {op::softplus_backward});
  add<mish_backward>(r, {op::mish_backward});
  add<native_dropout_backward>(r, {op::native_dropout_backward});
  add<glu_backward>(r, {op::glu_backward});
  add<select_backward>(r, {op::select_backward});
  add<slice_backward>(r, {op::slice_backward});
  add<mse_loss_backward>(r, {op::mse_loss_backward});
  add<smooth_l1_backward<false>>(r, {op::smooth_l1_loss_backward});
  add<smooth_l1_backward<true>>(r, {op::huber_loss_backward});
  add<layer_norm_backward>(r, {op::native_layer_norm_backward});
  add<batch_norm_backward>(r, {op::native_batch_norm_backward});
  add<group_norm_backward>(r, {op::native_group_norm_backward});
  add<softmax_backward<false>, Takes::kFloats>(r, {op::_softmax_backward_data});
  add<softmax_backward<true>, Takes::kFloats>(r, {op::_log_softmax_backward_data});
}

}  // namespace flashover::graph::rules
