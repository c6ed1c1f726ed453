// Reductions, scans, softmax, sorting. ATen allocates their results contiguous.
#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

enum class Out { kKeep, kSum, kBool, kIndex, kReal };

DType out_dtype(const TensorType& x, Out o) {
  switch (o) {
    case Out::kSum:
      return is_integral_or_bool(x.dtype) ? DType::kI64 : x.dtype;
    case Out::kBool:
      return x.dtype == DType::kU8 ? DType::kU8 : DType::kBool;
    case Out::kIndex:
      return DType::kI64;
    case Out::kReal:
      return to_real(x.dtype);
    case Out::kKeep:
      break;
  }
  return x.dtype;
}

TensorType reduced(const TensorType& x, DType dtype, const std::vector<bool>& mask, bool keepdim) {
  Sizes sizes;
  for (size_t i = 0; i < x.rank(); ++i) {
    if (!mask[i])
      sizes.push_back(x.sizes[i]);
    else if (keepdim)
      sizes.push_back(1);
  }
  return fresh(x, dtype, std::move(sizes));
}
// True when a reduced dim may be empty: operators without identity reject that.
bool may_be_empty(const TensorType& x, const std::vector<bool>& mask) {
  for (size_t i = 0; i < x.rank(); ++i)
    if (mask[i] && !sym::known_lt(0, x.sizes[i])) return true;
  return false;
}

enum Needs { kNothing = 0, kFloats = 1, kNotEmpty = 2, kRealValues = 4 };
bool acceptable(const TensorType& x, const std::vector<bool>& mask, int needs) {
  if ((needs & kFloats) && !is_floating(x.dtype) && !is_complex(x.dtype)) return false;
  if ((needs & kRealValues) && is_complex(x.dtype)) return false;
  return !(needs & kNotEmpty) || !may_be_empty(x, mask);
}

// All dims; `dtype` is the argument that overrides the result's dtype, or 0.
template <Out o, int needs, size_t dtype = 0>
bool over_all(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (!x) return false;
  auto d = dtype ? dtype_of(arg(in, dtype)) : std::nullopt;
  std::vector<bool> mask(x->rank(), true);
  TensorType as = *x;
  if (d) as.dtype = *d;
  return acceptable(as, mask, needs) && one(outs, reduced(*x, d.value_or(out_dtype(*x, o)), mask, false));
}

// (self, dim(s), keepdim, ...)
template <Out o, int needs, size_t dim = 1, size_t keepdim = 2, size_t dtype = 0, bool empty_is_all = true>
bool over_dims(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (!x) return false;
  auto mask = dim_mask(arg(in, dim), x->rank(), empty_is_all);
  auto d = dtype ? dtype_of(arg(in, dtype)) : std::nullopt;
  if (!mask) return false;
  TensorType as = *x;
  if (d) as.dtype = *d;
  return acceptable(as, *mask, needs) &&
         one(outs, reduced(*x, d.value_or(out_dtype(*x, o)), *mask, flag(arg(in, keepdim))));
}

template <Out first, Out second, int needs, size_t dim = 1, size_t keepdim = 2>
bool two_over_dims(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (!x) return false;
  auto mask = dim_mask(arg(in, dim), x->rank());
  if (!mask || !acceptable(*x, *mask, needs)) return false;
  bool keep = flag(arg(in, keepdim));
  outs = {reduced(*x, out_dtype(*x, first), *mask, keep), reduced(*x, out_dtype(*x, second), *mask, keep)};
  return true;
}

bool vector_norm(In in, Types& outs) {  // (self, ord, dim, keepdim, dtype)
  const TensorType* x = tensor(in, 0);
  if (!x || !(is_floating(x->dtype) || is_complex(x->dtype))) return false;
  auto mask = dim_mask(arg(in, 2), x->rank());
  auto d = dtype_of(arg(in, 4));
  auto ord = number(arg(in, 1));
  if (!mask || !ord || ((*ord < 0 || *ord > 1e300) && may_be_empty(*x, *mask))) return false;
  if (d && promote(x->dtype, *d) != *d) return false;  // narrower: refused
  return one(outs, reduced(*x, to_real(d.value_or(x->dtype)), *mask, flag(arg(in, 3))));
}

template <Out o, int needs, size_t dtype = 0>
bool along_dim(In in, Types& outs) {  // scans and softmax: same sizes, contiguous
  const TensorType* x = tensor(in, 0);
  auto dim = integer(arg(in, 1));
  if (!x || !dim || !wrap_dim(*dim, x->rank())) return false;
  auto d = dtype ? dtype_of(arg(in, dtype)) : std::nullopt;
  if (!acceptable(*x, {}, needs & ~kNotEmpty)) return false;
  return one(outs, fresh(*x, d.value_or(out_dtype(*x, o)), x->sizes));
}
bool softmax(In in, Types& outs) { return !flag(arg(in, 2)) && along_dim<Out::kKeep, kFloats | kRealValues>(in, outs); }
bool safe_softmax(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto d = dtype_of(arg(in, 2));
  return x && is_floating(d.value_or(x->dtype)) && along_dim<Out::kKeep, kRealValues, 2>(in, outs);
}
bool cummax(In in, Types& outs) {
  if (!along_dim<Out::kKeep, kRealValues>(in, outs)) return false;
  outs.push_back(outs[0]);
  outs[1].dtype = DType::kI64;
  return true;
}

template <size_t dim>
bool sort(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto d = integer(arg(in, dim));
  TensorType out;
  if (!x || is_complex(x->dtype) || !d || !wrap_dim(*d, x->rank()) || !fresh_like(*x, x->dtype, std::nullopt, out))
    return false;
  outs = {out, out};
  outs[1].dtype = DType::kI64;
  return true;
}
bool topk(In in, Types& outs) {  // (self, k, dim, largest, sorted)
  const TensorType* x = tensor(in, 0);
  auto k = size_expr(arg(in, 1));
  auto dim = integer(arg(in, 2));
  if (!x || is_complex(x->dtype) || !k || !dim) return false;
  auto d = wrap_dim(*dim, x->rank());
  if (!d || !sym::known_le(0, *k)) return false;
  if (!sym::known_le(*k, x->rank() == 0 ? Expr(1) : x->sizes[*d])) return false;
  Sizes sizes = x->sizes;
  if (x->rank() > 0) sizes[*d] = *k;
  outs = {fresh(*x, x->dtype, sizes), fresh(*x, DType::kI64, sizes)};
  return true;
}
bool aminmax(In in, Types& outs) { return two_over_dims<Out::kKeep, Out::kKeep, kNotEmpty | kRealValues>(in, outs); }

}  // namespace

void add_reductions(Table& t) {
  const auto kind = OpKind::kReduction;
  t.add("sum.default", kind, over_all<Out::kSum, kNothing, 1>);
  t.add("sum.dim_IntList", kind, over_dims<Out::kSum, kNothing, 1, 2, 3>);
  t.add("nansum.default", kind, over_dims<Out::kSum, kRealValues, 1, 2, 3>);
  t.add("mean.default", kind, over_all<Out::kKeep, kFloats, 1>);
  t.add("mean.dim", kind, over_dims<Out::kKeep, kFloats, 1, 2, 3>);
  t.add("prod.default", kind, over_all<Out::kSum, kNothing, 1>);
  t.add("prod.dim_int", kind, over_dims<Out::kSum, kNothing, 1, 2, 3>);
  add_out<over_dims<Out::kSum, kNothing, 1, 2, 3>, false>(t, "sum", "dim_IntList", "IntList_out", 4, kind);
  add_out<over_dims<Out::kKeep, kFloats, 1, 2, 3>, false>(t, "mean", "dim", "out", 4, kind);
  for (const char* name : {"amax", "amin"})
    t.add(std::string(name) + ".default", kind, over_dims<Out::kKeep, kNotEmpty | kRealValues>);
  for (const char* name : {"max", "min"}) {
    t.add(std::string(name) + ".default", kind, over_all<Out::kKeep, kNotEmpty | kRealValues>);
    t.add(std::string(name) + ".dim", kind, two_over_dims<Out::kKeep, Out::kIndex, kNotEmpty | kRealValues>);
  }
  for (const char* name : {"median", "nanmedian"}) {
    t.add(std::string(name) + ".default", OpKind::kExtern, over_all<Out::kKeep, kNotEmpty | kRealValues>);
    t.add(std::string(name) + ".dim", OpKind::kExtern, two_over_dims<Out::kKeep, Out::kIndex, kNotEmpty | kRealValues>);
  }
  t.add("mode.default", OpKind::kExtern, two_over_dims<Out::kKeep, Out::kIndex, kNotEmpty | kRealValues>);
  t.add("kthvalue.default", OpKind::kExtern, two_over_dims<Out::kKeep, Out::kIndex, kNotEmpty | kRealValues, 2, 3>);
  t.add("aminmax.default", kind, aminmax);
  for (const char* name : {"argmax", "argmin"})
    t.add(std::string(name) + ".default", kind, over_dims<Out::kIndex, kNotEmpty | kRealValues>);
  for (const char* name : {"any", "all"}) {
    t.add(std::string(name) + ".default", kind, over_all<Out::kBool, kNothing>);
    t.add(std::string(name) + ".dim", kind, over_dims<Out::kBool, kNothing>);
    t.add(std::string(name) + ".dims", kind, over_dims<Out::kBool, kNothing, 1, 2, 0, false>);
  }
  for (const char* name : {"var", "std"})
    t.add(std::string(name) + ".correction", kind, over_dims<Out::kReal, kFloats, 1, 3>);
  for (const char* name : {"var_mean", "std_mean"})
    t.add(std::string(name) + ".correction", kind, two_over_dims<Out::kReal, Out::kKeep, kFloats, 1, 3>);
  t.add("linalg_vector_norm.default", kind, vector_norm);
  t.add("logsumexp.default", kind, over_dims<Out::kKeep, kFloats>);
  t.add("count_nonzero.dim_IntList", kind, over_dims<Out::kIndex, kNothing, 1, 9>);
  t.add("count_nonzero.default", kind, over_dims<Out::kIndex, kNothing, 1, 9>);

  t.add("cumsum.default", OpKind::kScan, along_dim<Out::kSum, kNothing, 2>);
  t.add("cumprod.default", OpKind::kScan, along_dim<Out::kSum, kNothing, 2>);
  add_out<along_dim<Out::kSum, kNothing, 2>, false>(t, "cumsum", "default", "out", 3, OpKind::kScan);
  t.add("logcumsumexp.default", OpKind::kExtern, along_dim<Out::kKeep, kFloats>);
  t.add("cummax.default", OpKind::kScan, cummax);
  t.add("cummin.default", OpKind::kScan, cummax);

  t.add("_softmax.default", kind, softmax);
  t.add("_log_softmax.default", kind, softmax);
  t.add("_safe_softmax.default", kind, safe_softmax);

  t.add("sort.default", OpKind::kExtern, sort<1>);
  t.add("sort.stable", OpKind::kExtern, sort<2>);
  t.add("topk.default", OpKind::kExtern, topk);
}

}  // namespace flashover::ops::aten
