// Copies, casts, fills and factories.
#include <cmath>

#include "graph/decompose/rules.h"
#include "ops/aten/infer.h"
#include "ops/names.h"

namespace flashover::graph::rules {
namespace {

bool same_device(Builder& b, const Node& n) { return result(b, n).device.type == type(b, n, 0).device.type; }

bool cast(Builder& b, const Node& n, Outs& outs) {
  return same_device(b, n) && done(b, in(n, 0), result(b, n).dtype, outs);
}
// (A value of its own, also of the same dtype: it is weak.)
bool number_of_data(Builder& b, const Node& n, Outs& outs) {
  TensorType t = result(b, n);
  const ValueId x = b.reshape(in(n, 0), {});
  outs = {b.emit(Prim::convert, {Ref{x}, t.dtype})};
  b.graph().values[static_cast<size_t>(outs[0])].type.wrapped_number = true;
  return true;
}
bool copy(Builder& b, const Node& n, Outs& outs) {  // (self, src): src as self's dtype and sizes
  TensorType t = result(b, n);
  if (type(b, n, 1).device != t.device) return false;
  return done(b, b.expand(b.convert(in(n, 1), t.dtype), t.sizes), t.dtype, outs);
}

bool filled(Builder& b, const Node& n, const Arg& value, Outs& outs) {
  TensorType t = result(b, n);
  auto v = scalar_in(value, t.dtype);
  if (!v) return false;
  outs = {b.full(t.sizes, *v, t.dtype, t.device)};
  return true;
}
template <int value>
bool constant_fill(Builder& b, const Node& n, Outs& outs) {
  return filled(b, n, Arg(sym::Expr(value)), outs);
}
template <size_t at>
bool scalar_fill(Builder& b, const Node& n, Outs& outs) {
  if (has(n, at)) {
    TensorType t = result(b, n);
    return type(b, n, at).rank() == 0 && done(b, b.expand(b.convert(in(n, at), t.dtype), t.sizes), t.dtype, outs);
  }
  return filled(b, n, arg(n, at), outs);
}

// start + i * step. Whole numbers count in i64; eager computes the rest in f64 and rounds once.
template <int start, int step>
bool arange(Builder& b, const Node& n, Outs& outs) {
  TensorType t = result(b, n);
  const Arg first = start < 0 ? Arg(sym::Expr(0)) : arg(n, start);
  const Arg by = step < 0 ? Arg(sym::Expr(1)) : arg(n, step);
  if (t.dtype == DType::kBool) return false;
  auto whole = [](const Arg& a) {
    auto v = number(a);
    return std::holds_alternative<sym::Expr>(a) || (v && std::trunc(*v) == *v && std::fabs(*v) < 9e15);
  };
  if (whole(first) && whole(by)) {
    auto i = [](const Arg& a) {
      return std::holds_alternative<sym::Expr>(a) ? a : Arg(sym::Expr(static_cast<int64_t>(*number(a))));
    };
    return done(b, b.iota(t.sizes[0], i(first), i(by), DType::kI64, t.device), t.dtype, outs);
  }
  auto x = number(first), s = number(by);
  if (!x || !s || !is_floating(t.dtype)) return false;
  ValueId i = b.convert(b.iota(t.sizes[0], sym::Expr(0), sym::Expr(1), DType::kI64, t.device), DType::kF64);
  return done(b, b.add(constant(b, i, *x), b.mul(i, constant(b, i, *s))), t.dtype, outs);
}

// Symmetric from both ends, as eager.
bool linspace(Builder& b, const Node& n, Outs& outs) {
  TensorType t = result(b, n);
  if (!is_floating(t.dtype)) return false;
  for (size_t end = 0; end < 2; ++end)
    if (!has(n, end) && !number(arg(n, end))) return false;
  const sym::Expr steps = t.sizes[0];
  if (steps.is_const() && steps.value() < 1) return false;
  const auto end = [&](size_t i) {
    return has(n, i) ? b.convert(in(n, i), DType::kF64) : b.full({}, Arg(*number(arg(n, i))), DType::kF64, t.device);
  };
  const ValueId x = end(0), y = end(1);
  ValueId whole = b.iota(steps, sym::Expr(0), sym::Expr(1), DType::kI64, t.device);
  ValueId i = b.convert(whole, DType::kF64);
  const ValueId step = b.div(b.sub(y, x), number_of(b, i, sym::max(steps - 1, 1)));
  ValueId up = b.add(x, b.mul(i, step));
  ValueId left = b.sub(number_of(b, i, steps - 1), i);
  ValueId down = b.sub(y, b.mul(left, step));
  const sym::Expr half = sym::max(sym::floordiv(steps, 2), 1);  // a single step is the start
  return done(b, b.where(b.lt(whole, number_of(b, whole, half)), up, down), t.dtype, outs);
}

bool eye(Builder& b, const Node& n, Outs& outs) {
  TensorType t = result(b, n);
  auto line = [&](int64_t d) { return b.iota(t.sizes[d], sym::Expr(0), sym::Expr(1), DType::kI64, t.device); };
  return done(b, b.eq(b.unsqueeze(line(0), 1), line(1)), t.dtype, outs);
}

template <bool lower>
bool triangle(Builder& b, const Node& n, Outs& outs) {  // keeps col - row <= k (lower) or >= k
  TensorType t = result(b, n);
  auto k = ops::aten::size_expr(arg(n, 1));
  if (!k || t.rank() < 2) return false;
  ValueId x = in(n, 0);
  auto line = [&](size_t d) { return b.iota(t.sizes[d], sym::Expr(0), sym::Expr(1), DType::kI64, t.device); };
  ValueId row = b.unsqueeze(line(t.rank() - 2), 1), column = line(t.rank() - 1);
  ValueId limit = b.add(row, number_of(b, row, *k));
  ValueId keep = lower ? b.le(column, limit) : b.ge(column, limit);
  return done(b, b.where(keep, x, b.full({}, *scalar_in(sym::Expr(0), t.dtype), t.dtype, t.device)), t.dtype, outs);
}

}  // namespace

void add_copies(DecompositionRows& r) {
  add<cast>(r, {op::_to_copy, op::clone, op::alias, op::detach, op::lift_fresh, op::lift_fresh_copy, op::alias_copy,
                op::detach_copy});
  add<copy>(r, {op::copy});
  add<number_of_data>(r, {op::number});
  add<constant_fill<0>>(r, {op::zero, op::zeros, op::zeros_like, op::new_zeros, op::_efficientzerotensor});
  // Whatever memory held is as good as zero, and zero is the same twice.
  add<constant_fill<0>>(r, {op::empty_memory_format, op::empty_strided, op::empty_permuted, op::empty_like,
                            op::new_empty, op::new_empty_strided});
  add<constant_fill<1>>(r, {op::ones, op::ones_like, op::new_ones});
  add<scalar_fill<0>>(r, {op::scalar_tensor});
  add<scalar_fill<1>>(r, {op::full, op::full_like, op::fill_Scalar, op::fill_Tensor});
  add<scalar_fill<2>>(r, {op::new_full});
  add<arange<-1, -1>>(r, {op::arange});
  add<arange<0, -1>>(r, {op::arange_start});
  add<arange<0, 2>>(r, {op::arange_start_step});
  add<linspace>(r, {op::linspace});
  add<eye>(r, {op::eye, op::eye_m});
  add<triangle<true>>(r, {op::tril});
  add<triangle<false>>(r, {op::triu});
}

}  // namespace flashover::graph::rules
