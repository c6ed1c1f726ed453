// Reductions, scans and softmax. Reduced floats accumulate in f32.
#include <algorithm>
#include <cmath>

#include "graph/decompose/rules.h"
#include "ops/names.h"

namespace flashover::graph::rules {
namespace {

// What the argument at `at` says about dims; all of them when there is no such argument.
std::optional<Ints> reduced_dims(Builder& b, const Node& n, int at, bool empty_is_all = true) {
  ValueId x = in(n, 0);
  return at < 0 ? std::optional(b.all_dims(x)) : dims(b, arg(n, static_cast<size_t>(at)), x, empty_is_all);
}
bool keep(const Node& n, int at) { return at >= 0 && flag(arg(n, static_cast<size_t>(at))); }

template <int dim, int keepdim>
bool sum(Builder& b, const Node& n, Outs& outs) {
  auto over = reduced_dims(b, n, dim);
  DType d = result(b, n).dtype;
  if (!over || d == DType::kBool) return false;
  return done(b, b.sum(b.convert(in(n, 0), math(d)), *over, keep(n, keepdim)), d, outs);
}
bool nansum(Builder& b, const Node& n, Outs& outs) {
  auto over = reduced_dims(b, n, 1);
  DType d = result(b, n).dtype;
  if (!over || d == DType::kBool) return false;
  ValueId x = b.convert(in(n, 0), math(d));
  if (is_floating(d)) x = b.where(b.isnan(x), constant(b, x, 0), x);
  return done(b, b.sum(x, *over, keep(n, 2)), d, outs);
}
ValueId mean_of(Builder& b, ValueId x, const Ints& over, bool keepdim) {
  ValueId total = b.sum(x, over, keepdim);
  return b.div(total, number_of(b, x, b.count(x, over)));
}
template <int dim, int keepdim>
bool mean(Builder& b, const Node& n, Outs& outs) {
  auto over = reduced_dims(b, n, dim);
  DType d = result(b, n).dtype;
  if (!over || !is_floating(d)) return false;
  return done(b, mean_of(b, b.convert(in(n, 0), math(d)), *over, keep(n, keepdim)), d, outs);
}
template <int dim, int keepdim>
bool prod(Builder& b, const Node& n, Outs& outs) {
  auto over = reduced_dims(b, n, dim);
  DType d = result(b, n).dtype;
  if (!over || d == DType::kBool) return false;
  return done(b, b.prod(b.convert(in(n, 0), math(d)), *over, keep(n, keepdim)), d, outs);
}

ValueId extremum(Builder& b, ValueId x, const Ints& over, bool keepdim, bool largest) {
  DType d = b.dtype(x);
  if (d == DType::kBool) return largest ? b.any(x, over, keepdim) : b.all(x, over, keepdim);
  ValueId m = b.convert(x, math(d));
  return b.convert(largest ? b.amax(m, over, keepdim) : b.amin(m, over, keepdim), d);
}
template <bool largest, int dim, int keepdim>
bool amax(Builder& b, const Node& n, Outs& outs) {
  auto over = reduced_dims(b, n, dim);
  if (!over || may_be_empty(b, in(n, 0), *over)) return false;
  outs = {extremum(b, in(n, 0), *over, keep(n, keepdim), largest)};
  return true;
}
bool aminmax(Builder& b, const Node& n, Outs& outs) {
  auto over = reduced_dims(b, n, 1);
  if (!over || may_be_empty(b, in(n, 0), *over)) return false;
  for (bool largest : {false, true}) outs.push_back(extremum(b, in(n, 0), *over, keep(n, 2), largest));
  return true;
}
// 8-bit and bool values compare as they are in i32.
ValueId arg_extremum(Builder& b, ValueId x, const Ints& over, bool keepdim, bool largest) {
  DType d = b.dtype(x);
  ValueId m = b.convert(x, d == DType::kBool ? DType::kU8 : math(d));
  return largest ? b.argmax(m, over, keepdim) : b.argmin(m, over, keepdim);
}
template <bool largest>
bool max_dim(Builder& b, const Node& n, Outs& outs) {
  auto over = reduced_dims(b, n, 1);
  ValueId x = in(n, 0);
  if (!over || may_be_empty(b, x, *over)) return false;
  bool keepdim = flag(arg(n, 2));
  outs = {dead(n, 0) ? kNoValue : extremum(b, x, *over, keepdim, largest),
          dead(n, 1) ? kNoValue : arg_extremum(b, x, *over, keepdim, largest)};
  return true;
}
template <bool largest>
bool argmax(Builder& b, const Node& n, Outs& outs) {
  auto over = reduced_dims(b, n, 1);
  ValueId x = in(n, 0);
  if (!over || may_be_empty(b, x, *over)) return false;
  outs = {arg_extremum(b, x, *over, flag(arg(n, 2)), largest)};
  return true;
}

template <bool is_any, int dim, int keepdim, bool empty_is_all = true>
bool any(Builder& b, const Node& n, Outs& outs) {
  auto over = reduced_dims(b, n, dim, empty_is_all);
  if (!over) return false;
  ValueId x = b.convert(in(n, 0), DType::kBool);
  ValueId y = is_any ? b.any(x, *over, keep(n, keepdim)) : b.all(x, *over, keep(n, keepdim));
  return done(b, y, result(b, n).dtype, outs);
}
bool count_nonzero(Builder& b, const Node& n, Outs& outs) {
  auto over = reduced_dims(b, n, 1);
  if (!over) return false;
  ValueId x = b.convert(b.convert(in(n, 0), DType::kBool), DType::kI64);
  outs = {b.sum(x, *over)};
  return true;
}

// On the CPU eager sums variances in f64: squares of floats above 1e19 do not overflow, nor vanish those below 1e-22.
DType squares_of(const TensorType& t) {
  const DType d = math(t.dtype);
  return t.device.type == DeviceType::kCPU && d == DType::kF32 ? DType::kF64 : d;
}

template <bool root, bool with_mean>
bool var(Builder& b, const Node& n, Outs& outs) {  // (self, dim, correction, keepdim)
  auto over = reduced_dims(b, n, 1);
  DType d = result(b, n).dtype;
  auto correction = is_none(arg(n, 2)) ? std::optional(1.0) : number(arg(n, 2));
  if (!over || !correction || !is_floating(d)) return false;
  const sym::Expr count = b.count(in(n, 0), *over);
  std::optional<sym::Expr> freedom;  // count - correction, where that is not a number
  if (!count.is_const()) {
    const double whole = std::floor(*correction);
    if (whole != *correction || std::abs(whole) > 1e9) return false;
    freedom = count - static_cast<int64_t>(whole);
    if (!sym::known_lt(1, count) || !sym::known_le(0, *freedom)) return false;
  }
  bool keepdim = flag(arg(n, 3));
  const ValueId x = b.convert(in(n, 0), squares_of(result(b, n)));
  const Moments m = moments(b, x, *over);
  Sizes sizes = b.sizes(m.squares);
  Ints falling = *over;
  std::sort(falling.rbegin(), falling.rend());
  if (!keepdim)
    for (int64_t d : falling) sizes.erase(sizes.begin() + d);
  ValueId squares = b.reshape(m.squares, sizes);
  ValueId v = b.div(squares, freedom ? number_of(b, x, *freedom)
                                     : constant(b, x, std::max(0.0, static_cast<double>(count.value()) - *correction)));
  outs = {b.convert(root ? b.sqrt(v) : v, d)};
  if (with_mean) {  // an infinity among several elements makes eager's running mean NaN
    const ValueId mean = b.reshape(count.is_const(1) ? x : m.mean, sizes);
    outs.push_back(b.convert(count.is_const(1) ? mean : b.where(b.isnan(squares), squares, mean), d));
  }
  return true;
}

// The norm of one element is what it is without its sign, as in eager: its power may overflow, or become zero.
ValueId root_of_powers(Builder& b, ValueId x, double ord, const Ints& over, bool keepdim) {
  const sym::Expr count = b.count(x, over);
  const ValueId size = b.abs(x);
  if (count.is_const(1)) return b.amax(size, over, keepdim);
  const auto power = [&](ValueId v, double e) { return b.pow(v, constant(b, x, e)); };
  const auto root = [&](ValueId v) { return ord == 2 ? b.sqrt(v) : power(v, 1 / ord); };
  ValueId each = ord == 2 ? b.mul(x, x) : power(size, ord);
  if (count.is_const() || sym::known_lt(1, count)) return root(b.sum(each, over, keepdim));
  const ValueId is_alone = b.eq(number_of(b, x, count), constant(b, x, 1));
  const ValueId total = b.sum(b.where(is_alone, size, each), over, keepdim);
  return b.where(is_alone, total, root(total));
}
bool vector_norm(Builder& b, const Node& n, Outs& outs) {  // (self, ord, dim, keepdim, dtype)
  auto over = reduced_dims(b, n, 2);
  auto ord = number(arg(n, 1));
  DType d = result(b, n).dtype;
  ValueId source = in(n, 0);
  if (!over || !ord || !is_floating(d)) return false;
  if ((std::isinf(*ord) || *ord < 0) && may_be_empty(b, source, *over)) return false;
  bool keepdim = flag(arg(n, 3));
  ValueId x = b.convert(source, math(d));
  auto y = [&]() -> ValueId {
    ValueId a = b.abs(x);
    if (*ord == 1) return b.sum(a, *over, keepdim);
    if (*ord == kInf) return b.amax(a, *over, keepdim);
    if (*ord == -kInf) return b.amin(a, *over, keepdim);
    if (*ord == 0) return b.sum(b.convert(b.ne(x, constant(b, x, 0)), b.dtype(x)), *over, keepdim);
    return root_of_powers(b, x, *ord, *over, keepdim);
  };
  return done(b, y(), d, outs);
}
bool logsumexp(Builder& b, const Node& n, Outs& outs) {
  auto over = reduced_dims(b, n, 1);
  DType d = result(b, n).dtype;
  if (!over || !is_floating(d) || may_be_empty(b, in(n, 0), *over)) return false;
  bool keepdim = flag(arg(n, 2));
  ValueId x = b.convert(in(n, 0), math(d));
  ValueId top = b.amax(x, *over, true);
  top = b.where(b.isinf(top), constant(b, x, 0), top);
  ValueId total = b.log(b.sum(b.exp(b.sub(x, top)), *over, true));
  ValueId y = b.add(total, top);
  return done(b, keepdim ? y : b.reshape(y, result(b, n).sizes), d, outs);
}

// ATen accumulates scans of f32 in f64.
template <ValueId (Builder::*F)(ValueId, int64_t)>
bool scan(Builder& b, const Node& n, Outs& outs) {
  auto dim = integer(arg(n, 1));
  DType d = result(b, n).dtype;
  ValueId x = in(n, 0);
  if (!dim || d == DType::kBool) return false;
  if (b.rank(x) == 0) return done(b, x, d, outs);
  DType m = d == DType::kF32 ? DType::kF64 : math(d);
  return done(b, (b.*F)(b.convert(b.convert(x, d), m), b.wrap(x, *dim)), d, outs);
}
template <ValueId (Builder::*F)(ValueId, int64_t)>
bool running_extremum(Builder& b, const Node& n, Outs& outs) {
  auto dim = integer(arg(n, 1));
  ValueId x = in(n, 0);
  if (!dim || !dead(n, 1) || b.rank(x) == 0 || b.dtype(x) == DType::kBool) return false;
  outs = {b.convert((b.*F)(b.convert(x, math(b.dtype(x))), b.wrap(x, *dim)), b.dtype(x)), kNoValue};
  return true;
}

enum class Soft { kPlain, kLog, kSafe };
template <Soft kind>
bool softmax(Builder& b, const Node& n, Outs& outs) {  // (self, dim, half_to_float or dtype)
  auto over = dims(b, arg(n, 1), in(n, 0));
  DType d = result(b, n).dtype;
  if (!over || !is_floating(d) || b.type(in(n, 0)).numel().is_const(0)) return false;
  ValueId x = b.convert(in(n, 0), math(d));
  ValueId top = b.amax(x, *over, true);  // (of nothing it is for nothing)
  ValueId off = b.sub(x, top);
  if (kind == Soft::kLog) return done(b, b.sub(off, b.log(b.sum(b.exp(off), *over, true))), d, outs);
  ValueId e = b.exp(off);
  ValueId y = b.div(e, b.sum(e, *over, true));
  if (kind == Soft::kSafe) y = b.where(b.eq(top, constant(b, x, -kInf)), constant(b, x, 0), y);
  return done(b, y, d, outs);
}

}  // namespace

void add_reductions(DecompositionRows& r) {
  add<sum<-1, -1>>(r, {op::sum});
  add<sum<1, 2>>(r, {op::sum_dim_IntList});
  add<nansum>(r, {op::nansum});
  add<mean<-1, -1>>(r, {op::mean});
  add<mean<1, 2>>(r, {op::mean_dim});
  add<prod<-1, -1>>(r, {op::prod});
  add<prod<1, 2>>(r, {op::prod_dim_int});
  add<amax<true, 1, 2>>(r, {op::amax});
  add<amax<false, 1, 2>>(r, {op::amin});
  add<amax<true, -1, -1>>(r, {op::max});
  add<amax<false, -1, -1>>(r, {op::min});
  add<max_dim<true>>(r, {op::max_dim});
  add<max_dim<false>>(r, {op::min_dim});
  add<argmax<true>, Takes::kNumbers>(r, {op::argmax});
  add<argmax<false>, Takes::kNumbers>(r, {op::argmin});
  add<aminmax>(r, {op::aminmax});
  add<any<true, -1, -1>>(r, {op::any});
  add<any<false, -1, -1>>(r, {op::all});
  add<any<true, 1, 2>>(r, {op::any_dim});
  add<any<false, 1, 2>>(r, {op::all_dim});
  add<any<true, 1, 2, false>>(r, {op::any_dims});
  add<any<false, 1, 2, false>>(r, {op::all_dims});
  add<count_nonzero>(r, {op::count_nonzero, op::count_nonzero_dim_IntList});
  add<var<false, false>>(r, {op::var_correction});
  add<var<true, false>>(r, {op::std_correction});
  add<var<false, true>>(r, {op::var_mean_correction});
  add<var<true, true>>(r, {op::std_mean_correction});
  add<vector_norm>(r, {op::linalg_vector_norm});
  add<logsumexp>(r, {op::logsumexp});
  add<scan<&Builder::cumsum>>(r, {op::cumsum});
  add<scan<&Builder::cumprod>>(r, {op::cumprod});
  add<running_extremum<&Builder::cummax>>(r, {op::cummax});
  add<running_extremum<&Builder::cummin>>(r, {op::cummin});
  add<softmax<Soft::kPlain>>(r, {op::_softmax});
  add<softmax<Soft::kLog>>(r, {op::_log_softmax});
  add<softmax<Soft::kSafe>>(r, {op::_safe_softmax});
}

}  // namespace flashover::graph::rules
