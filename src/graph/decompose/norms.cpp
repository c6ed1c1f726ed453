// Normalizations.
#include "graph/decompose/rules.h"
#include "ops/names.h"

#include <tuple>

namespace flashover::graph::rules {
namespace {

struct Normal {
  ValueId y, mean, rstd;  // reduced dims kept
};
Normal normalized(Builder& b, ValueId x, const Ints& over, double eps) {
  const Moments m = moments(b, x, over);
  ValueId variance = b.div(m.squares, number_of(b, x, b.count(x, over)));
  ValueId rstd = b.rsqrt(b.add(variance, constant(b, x, eps)));
  // (off - shift) * rstd with one operation an element
  return {b.sub(b.mul(m.off, rstd), b.mul(m.shift, rstd)), m.mean, rstd};
}

// ATen takes parameters of the input's type, or of f32 beside 16 bits; other mixtures are its errors.
bool has_types_that_mix(Builder& b, const Node& n, std::initializer_list<size_t> parameters) {
  const DType d = b.dtype(in(n, 0));
  return std::ranges::all_of(parameters, [&](size_t i) {
    return !has(n, i) || b.dtype(in(n, i)) == d || (math(d) != d && b.dtype(in(n, i)) == DType::kF32);
  });
}

bool layer_norm(Builder& b, const Node& n, Outs& outs) {  // (input, normalized_shape, weight, bias, eps)
  auto* shape = std::get_if<Sizes>(&arg(n, 1));
  auto eps = number(arg(n, 4));
  ValueId x = in(n, 0);
  if (!shape || !eps || shape->empty() || b.type(x).numel().is_const(0)) return false;
  if (!has_types_that_mix(b, n, {2, 3})) return false;
  Ints over;
  for (size_t d = b.rank(x) - shape->size(); d < b.rank(x); ++d) over.push_back(static_cast<int64_t>(d));
  DType d = b.dtype(x), m = math(d);
  x = b.convert(x, m);
  Normal s = normalized(b, x, over, *eps);
  ValueId y = s.y;
  if (has(n, 2)) y = b.mul(y, b.convert(in(n, 2), m));
  if (has(n, 3)) y = b.add(y, b.convert(in(n, 3), m));
  outs = {b.convert(y, d)};
  for (ValueId v : {s.mean, s.rstd}) {
    size_t i = outs.size();
    outs.push_back(dead(n, i) ? kNoValue : b.convert(v, result(b, n, i).dtype));
  }
  return true;
}

bool group_norm(Builder& b, const Node& n, Outs& outs) {  // (input, weight, bias, N, C, HxW, group, eps)
  auto group = integer(arg(n, 6));
  auto eps = number(arg(n, 7));
  ValueId x = in(n, 0);
  Sizes sizes = b.sizes(x);
  if (!group || !eps || sizes.size() < 2 || b.type(x).numel().is_const(0)) return false;
  if (!sizes[1].is_const() || !has_types_that_mix(b, n, {1, 2})) return false;
  DType d = b.dtype(x), m = math(d);
  // [N, group, C / group, spatial...]: normalized over all but the first two.
  Sizes wide = sizes, stat{sizes[0], *group};
  wide[1] = *group;
  wide.insert(wide.begin() + 2, sym::floordiv(sizes[1], *group));
  Ints over;
  for (size_t i = 2; i < wide.size(); ++i) over.push_back(static_cast<int64_t>(i));
  Normal s = normalized(b, b.reshape(b.convert(x, m), wide), over, *eps);
  auto per_channel = [&](size_t i) {
    Sizes shape(sizes.size(), 1);
    shape[1] = sizes[1];
    return b.reshape(b.convert(in(n, i), m), shape);
  };
  ValueId y = b.reshape(s.y, sizes);
  if (has(n, 1)) y = b.mul(y, per_channel(1));
  if (has(n, 2)) y = b.add(y, per_channel(2));
  outs = {b.convert(y, d)};
  for (ValueId v : {s.mean, s.rstd}) {
    size_t i = outs.size();
    outs.push_back(dead(n, i) ? kNoValue : b.convert(b.reshape(v, stat), result(b, n, i).dtype));
  }
  return true;
}

// (input, weight, bias, running_mean, running_var, [training,] momentum, eps). Inference scales and shifts by numbers
// per channel that depend on parameters alone.
struct BatchNorm {
  bool training, running;
  size_t momentum, eps;
  size_t results;
};
bool batch_norm_as(Builder& b, const Node& n, const BatchNorm& how, Outs& outs) {
  ValueId x = in(n, 0);
  Sizes sizes = b.sizes(x);
  auto eps = number(arg(n, how.eps)), momentum = number(arg(n, how.momentum));
  if (!eps || !momentum || sizes.size() < 2 || b.type(x).numel().is_const(0)) return false;
  bool running = how.running && has(n, 3) && has(n, 4);
  if (!how.training && !running) return false;
  if (!(running ? has_types_that_mix(b, n, {1, 2, 3, 4}) : has_types_that_mix(b, n, {1, 2}))) return false;
  for (size_t i : {1, 2, 3, 4})
    if ((i < 3 || running) && has(n, i) && !same_sizes(b.sizes(in(n, i)), {sizes[1]})) return false;  // eager's error
  DType d = b.dtype(x), m = math(d);
  Ints over;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (i != 1) over.push_back(static_cast<int64_t>(i));
  const sym::Expr count = b.count(x, over);
  Sizes channel(sizes.size(), 1);
  channel[1] = sizes[1];
  auto across = [&](ValueId v) { return b.reshape(v, channel); };
  ValueId wide = b.convert(x, m), mean, rstd, variance = kNoValue;
  // What y is the scale times, and what the rounded mean of all elements leaves in that; kNoValue: nothing.
  ValueId off = kNoValue, shift = kNoValue;
  if (how.training) {
    if (b.type(x).device.type == DeviceType::kCUDA) {  // cut into parts there, and read once
      std::tie(variance, mean) = b.var(wide, over, 0.0);
      off = b.sub(wide, across(mean));
    } else {
      const Moments s = moments(b, wide, over);
      variance = b.div(b.reshape(s.squares, {sizes[1]}), number_of(b, wide, count));
      mean = b.reshape(s.mean, {sizes[1]});
      off = s.off;
      shift = b.reshape(s.shift, {sizes[1]});
    }
    rstd = b.rsqrt(b.add(variance, constant(b, wide, *eps)));
  } else {
    mean = b.convert(in(n, 3), m);
    variance = b.convert(in(n, 4), m);
    rstd = b.rsqrt(b.add(variance, constant(b, wide, *eps)));
  }
  ValueId scale = has(n, 1) ? b.mul(rstd, b.convert(in(n, 1), m)) : rstd;
  ValueId y, bias = has(n, 2) ? b.convert(in(n, 2), m) : kNoValue;
  if (how.training) {
    y = b.mul(off, across(scale));
    if (shift != kNoValue) {
      const ValueId left = b.mul(shift, scale);
      bias = bias == kNoValue ? b.neg(left) : b.sub(bias, left);
    }
    if (bias != kNoValue) y = b.add(y, across(bias));
  } else {
    const ValueId moved = b.mul(mean, scale);
    const ValueId offset = across(bias == kNoValue ? b.neg(moved) : b.sub(bias, moved));
    y = b.add(b.mul(wide, across(scale)), offset);
  }
  outs = {b.convert(y, d)};
  for (ValueId v : {mean, rstd}) {
    size_t i = outs.size();
    if (dead(n, i)) {
      outs.push_back(kNoValue);
      continue;
    }
    TensorType t = result(b, n, i);
    outs.push_back(how.training ? b.convert(v, t.dtype) : b.full(t.sizes, *scalar_in(0.0, t.dtype), t.dtype, t.device));
  }
  if (how.results == 5) {
    auto moved = [&](size_t at, ValueId now) {
      DType s = b.dtype(in(n, at));
      ValueId old = b.convert(in(n, at), m);
      return b.convert(b.add(b.mul(now, constant(b, now, *momentum)), b.mul(old, constant(b, old, 1 - *momentum))), s);
    };
    if (!how.training) {
      outs.push_back(in(n, 3));
      outs.push_back(in(n, 4));
    } else {
      outs.push_back(moved(3, mean));
      outs.push_back(moved(4, b.mul(variance, ratio(b, variance, count, count - 1))));
    }
  }
  return true;
}
bool batch_norm(Builder& b, const Node& n, Outs& outs) {
  bool training = flag(arg(n, 5));
  if (training && (has(n, 3) || has(n, 4))) return false;  // writes its running statistics: functionalized first
  return batch_norm_as(b, n, {training, true, 6, 7, 3}, outs);
}
bool batch_norm_functional(Builder& b, const Node& n, Outs& outs) {
  bool training = flag(arg(n, 5));
  ValueId x = in(n, 0);
  sym::Expr count = 1;
  for (size_t i = 0; i < b.rank(x); ++i)
    if (i != 1) count *= b.size(x, static_cast<int64_t>(i));
  if (!has(n, 3) || !has(n, 4) || (training && count.is_const() && count.value() < 2)) return false;
  return batch_norm_as(b, n, {training, true, 6, 7, 5}, outs);
}
bool batch_norm_no_training(Builder& b, const Node& n, Outs& outs) {
  return batch_norm_as(b, n, {false, true, 5, 6, 3}, outs);
}
bool batch_norm_no_stats(Builder& b, const Node& n, Outs& outs) {
  return flag(arg(n, 3)) && batch_norm_as(b, n, {true, false, 4, 5, 3}, outs);
}

}  // namespace

void add_norms(DecompositionRows& r) {
  add<layer_norm>(r, {op::native_layer_norm});
  add<group_norm>(r, {op::native_group_norm});
  add<batch_norm>(r, {op::native_batch_norm});
  add<batch_norm_functional>(r, {op::_native_batch_norm_legit_functional});
  add<batch_norm_no_training>(r, {op::_native_batch_norm_legit_no_training});
  add<batch_norm_no_stats>(r, {op::_native_batch_norm_legit_no_stats});
}

}  // namespace flashover::graph::rules
