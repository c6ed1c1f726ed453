// Tensors made from sizes and numbers, and *_like / new_*.
#include <cmath>

#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

// The trailing (dtype, layout, device, pin_memory) of every factory starts at argument `at`.
bool plain_options(In in, size_t at) {
  if (auto* l = std::get_if<Layout>(&arg(in, at + 1)); l && *l != Layout::kStrided) return false;
  return !flag(arg(in, at + 3));  // pinned memory
}
Device device_of(const Arg& a, Device fallback) {
  auto* d = std::get_if<Device>(&a);
  return d ? *d : fallback;
}

bool make(In in, size_t options, DType fallback, const Sizes& sizes, Types& outs, std::optional<Sizes> strides = {}) {
  if (!plain_options(in, options)) return false;
  TensorType t;
  t.dtype = dtype_of(arg(in, options)).value_or(fallback);
  t.device = device_of(arg(in, options + 2), Device{});
  for (Expr e : sizes)
    if (e.is_const() && e.value() < 0) return false;
  t.sizes = sizes;
  t.strides = strides ? *strides : contiguous_strides(sizes);
  return t.dtype != DType::kUndefined && one(outs, std::move(t));
}
std::optional<Sizes> sizes_of(const Arg& a) {
  if (auto* s = std::get_if<Sizes>(&a)) return *s;
  if (auto* l = std::get_if<RefList>(&a); l && l->empty()) return Sizes{};
  if (auto e = size_expr(a)) return Sizes{*e};
  return std::nullopt;
}
DType number_dtype(In in, const Arg& a) {
  DType d = scalar_dtype(a).value_or(DType::kUndefined);
  if (is_floating(d)) return in.default_dtype;
  if (is_complex(d)) return in.default_dtype == DType::kF64 ? DType::kC128 : DType::kC64;  // never of halves
  return d;
}

template <size_t options>
bool filled(In in, Types& outs) {  // zeros, ones, rand, randn: default dtype
  auto sizes = sizes_of(arg(in, 0));
  return sizes && make(in, options, in.default_dtype, *sizes, outs);
}
bool empty(In in, Types& outs) {
  auto sizes = sizes_of(arg(in, 0));
  if (!sizes) return false;
  auto strides = format_strides(*sizes, format_of(arg(in, 5)).value_or(MemoryFormat::kContiguous));
  return strides && make(in, 1, in.default_dtype, *sizes, outs, strides);
}
bool empty_strided(In in, Types& outs) {
  auto sizes = sizes_of(arg(in, 0)), strides = sizes_of(arg(in, 1));
  return sizes && strides && sizes->size() == strides->size() && make(in, 2, in.default_dtype, *sizes, outs, strides);
}
bool empty_permuted(In in, Types& outs) {
  auto sizes = sizes_of(arg(in, 0));
  auto order = integers(arg(in, 1));
  if (!sizes || !order || sizes->size() != order->size()) return false;
  Sizes permuted(sizes->size()), strides(sizes->size());
  for (size_t i = 0; i < order->size(); ++i) {
    auto d = wrap_dim((*order)[i], sizes->size());
    if (!d) return false;
    permuted[i] = (*sizes)[*d];
  }
  Sizes dense = contiguous_strides(permuted);
  for (size_t i = 0; i < order->size(); ++i) strides[*wrap_dim((*order)[i], sizes->size())] = dense[i];
  return make(in, 2, in.default_dtype, *sizes, outs, strides);
}
bool full(In in, Types& outs) {
  auto sizes = sizes_of(arg(in, 0));
  if (const TensorType* number = sizes ? tensor(in, 1) : nullptr)
    return make(in, 2, is_floating(number->dtype) ? in.default_dtype : DType::kI64, *sizes, outs);
  return sizes && is_scalar(arg(in, 1)) && make(in, 2, number_dtype(in, arg(in, 1)), *sizes, outs);
}
bool scalar_tensor(In in, Types& outs) { return make(in, 1, in.default_dtype, {}, outs); }

// How many steps of `by` lead from one size to another, the first included. A step that is no whole number is one of
// whole parts, with which floats count exactly.
std::optional<Expr> steps_between(Expr from, Expr to, const Arg& by) {
  constexpr int64_t kParts = 1024;
  const auto step = number(by);
  if (!step || !(std::fabs(*step) * kParts <= 1e9) || *step == 0) return std::nullopt;
  const bool whole = std::trunc(*step) == *step;
  const double parts = *step * static_cast<double>(whole ? 1 : kParts);
  if (std::trunc(parts) != parts) return std::nullopt;
  const Expr length = (*step > 0 ? to - from : from - to) * Expr(whole ? 1 : kParts);
  if (!sym::known_le(0, length)) return std::nullopt;  // ATen words the error
  return sym::ceildiv(length, Expr(static_cast<int64_t>(std::fabs(parts))));
}

template <int start, int end, int step, int options>
bool arange(In in, Types& outs) {
  const Arg one_arg = Expr(1), zero_arg = Expr(0);
  const Arg& a = start < 0 ? zero_arg : arg(in, start);
  const Arg& b = arg(in, end);
  const Arg& c = step < 0 ? one_arg : arg(in, step);
  if (!is_scalar(a) || !is_scalar(b) || !is_scalar(c)) return false;
  bool integral = true;
  for (const Arg* x : {&a, &b, &c}) integral &= is_integral_or_bool(*scalar_dtype(*x));
  DType fallback = integral ? DType::kI64 : in.default_dtype;
  // An integer dtype truncates float bounds first: only for whole ones is the count the same.
  if (!integral && is_integral(dtype_of(arg(in, options)).value_or(fallback)))
    for (const Arg* x : {&a, &b, &c})
      if (auto v = number(*x); !v || std::trunc(*v) != *v) return false;
  auto ea = size_expr(a), eb = size_expr(b);
  if (ea && eb && !(ea->is_const() && eb->is_const()))
    if (const auto length = steps_between(*ea, *eb, c)) return make(in, options, fallback, {*length}, outs);
  auto x = number(a), y = number(b), s = number(c);
  if (!x || !y || !s || *s == 0 || !std::isfinite(*x) || !std::isfinite(*y)) return false;
  if ((*s > 0 && *y < *x) || (*s < 0 && *y > *x)) return false;
  double n;
  if (integral) {
    int64_t lo = *integer(a), hi = *integer(b), by = *integer(c);
    const int64_t count = (hi - lo + by - (by > 0 ? 1 : -1)) / by;
    n = static_cast<double>(count);
  } else {
    n = std::ceil((*y - *x) / *s);
  }
  return make(in, options, fallback, {static_cast<int64_t>(n)}, outs);
}

bool linspace(In in, Types& outs) {
  auto steps = size_expr(arg(in, 2));
  DType fallback = in.default_dtype;
  for (size_t end = 0; end < 2; ++end) {
    if (const TensorType* late = tensor(in, end)) {
      if (!late->wrapped_number) return false;
    } else if (!is_scalar(arg(in, end))) {
      return false;
    } else if (is_complex(number_dtype(in, arg(in, end)))) {
      fallback = to_complex(in.default_dtype);
    }
  }
  return steps && make(in, 3, fallback, {*steps}, outs);
}
bool eye(In in, Types& outs) {
  auto n = size_expr(arg(in, 0));
  return n && make(in, 1, in.default_dtype, {*n, *n}, outs);
}
bool eye_m(In in, Types& outs) {
  auto n = size_expr(arg(in, 0)), m = size_expr(arg(in, 1));
  return n && m && make(in, 2, in.default_dtype, {*n, *m}, outs);
}
template <size_t sizes, size_t options>
bool random_int(In in, Types& outs) {
  auto s = sizes_of(arg(in, sizes));
  return s && make(in, options, DType::kI64, *s, outs);
}
template <size_t options>
bool random_permutation(In in, Types& outs) {
  auto n = size_expr(arg(in, 0));
  return n && make(in, options, DType::kI64, {*n}, outs);
}

template <size_t options>
bool like(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  TensorType out;
  if (!x || !plain_options(in, options)) return false;
  if (!fresh_like(*x, dtype_of(arg(in, options)).value_or(x->dtype), format_of(arg(in, options + 4)), out))
    return false;
  out.device = device_of(arg(in, options + 2), x->device);
  return one(outs, std::move(out));
}
template <size_t options>
bool made_new(In in, Types& outs) {  // new_empty, new_zeros, new_full ...
  const TensorType* x = tensor(in, 0);
  auto sizes = sizes_of(arg(in, 1));
  if (!x || !sizes || !make(in, options, x->dtype, *sizes, outs)) return false;
  outs[0].device = device_of(arg(in, options + 2), x->device);
  return true;
}
bool new_empty_strided(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto sizes = sizes_of(arg(in, 1)), strides = sizes_of(arg(in, 2));
  if (!x || !sizes || !strides || sizes->size() != strides->size()) return false;
  if (!make(in, 3, x->dtype, *sizes, outs, strides)) return false;
  outs[0].device = device_of(arg(in, 5), x->device);
  return true;
}

}  // namespace

void add_factories(Table& t) {
  const auto kind = OpKind::kFactory;
  t.add("empty.memory_format", kind, empty);
  t.add("empty_strided.default", kind, empty_strided);
  t.add("empty_permuted.default", kind, empty_permuted);
  t.add("zeros.default", kind, filled<1>);
  t.add("ones.default", kind, filled<1>);
  t.add("full.default", kind, full);
  t.add("scalar_tensor.default", kind, scalar_tensor);
  t.add("arange.default", kind, arange<-1, 0, -1, 1>);
  t.add("arange.start", kind, arange<0, 1, -1, 2>);
  t.add("arange.start_step", kind, arange<0, 1, 2, 3>);
  t.add("linspace.default", kind, linspace);
  t.add("eye.default", kind, eye);
  t.add("eye.m", kind, eye_m);
  for (const char* name : {"empty_like", "zeros_like", "ones_like"})
    t.add(std::string(name) + ".default", kind, like<1>);
  t.add("full_like.default", kind, like<2>);
  for (const char* name : {"new_empty", "new_zeros", "new_ones"})
    t.add(std::string(name) + ".default", kind, made_new<2>);
  t.add("new_full.default", kind, made_new<3>);
  t.add("new_empty_strided.default", kind, new_empty_strided);
  auto random = [&](const char* name, InferRule f) { t.add(name, OpKind::kRandom, f).nondeterministic = true; };
  random("rand.default", filled<1>);
  random("randn.default", filled<1>);
  random("rand.generator", filled<2>);
  random("randn.generator", filled<2>);
  random("randint.default", random_int<1, 2>);
  random("randint.low", random_int<2, 3>);
  random("randint.generator", random_int<1, 3>);
  random("randint.low_generator", random_int<2, 4>);
  random("randperm.default", random_permutation<1>);
  random("randperm.generator", random_permutation<2>);
  random("rand_like.default", like<1>);
  random("randn_like.default", like<1>);
  random("randint_like.default", like<2>);
  random("randint_like.low_dtype", like<3>);
}

}  // namespace flashover::ops::aten
