// What each prim.* means, said in ATen.
#include <ATen/ATen.h>

#include <unordered_map>

#include "base/check.h"
#include "eager/eval.h"
#include "ops/args.h"
#include "torch/convert.h"

namespace flashover::aten {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct Call {
  const graph::Node& node;
  const graph::Graph& graph;
  const TensorOf& tensor_of;
  Tensor t(size_t i) const { return tensor_of(ops::as_value(node.args.at(i))); }
  std::vector<int64_t> ints(size_t i) const { return ops::as_ints(node.args.at(i)); }
  int64_t integer(size_t i) const { return ops::as_int(node.args.at(i)); }
  at::Scalar scalar(size_t i) const { return to_scalar(node.args.at(i)); }
  at::ScalarType dtype(size_t i) const { return to_aten(ops::as_dtype(node.args.at(i))); }
  at::Device device(size_t i) const { return to_aten(ops::as_device(node.args.at(i))); }
  std::string text(size_t i) const { return std::get<std::string>(node.args.at(i)); }
  Tensors list(size_t i) const {
    Tensors out;
    for (Ref r : ops::as_values(node.args.at(i))) out.push_back(tensor_of(r.id));
    return out;
  }
  c10::List<std::optional<Tensor>> optional_list(size_t i) const {
    c10::List<std::optional<Tensor>> out;
    for (Ref r : ops::as_values(node.args.at(i)))
      out.push_back(r.id == kNoValue ? std::nullopt : std::optional(tensor_of(r.id)));
    return out;
  }
};

// Prims that are one ATen function of their tensors.
template <Tensor (*F)(const Tensor&)>
Tensors unary(const Call& c) {
  return {F(c.t(0))};
}
template <Tensor (*F)(const Tensor&, const Tensor&)>
Tensors binary(const Call& c) {
  return {F(c.t(0), c.t(1))};
}

Tensor rowmajor(const Tensor& t) { return t.contiguous(at::MemoryFormat::Contiguous); }

Tensors convert(const Call& c) { return {c.t(0).to(c.dtype(1), /*non_blocking=*/false, /*copy=*/true)}; }
Tensors div(const Call& c) { return {at::div(c.t(0), c.t(1))}; }
Tensors floordiv(const Call& c) { return {at::div(c.t(0), c.t(1), "floor")}; }
Tensors truncdiv(const Call& c) { return {at::div(c.t(0), c.t(1), "trunc")}; }
Tensors add(const Call& c) { return {at::add(c.t(0), c.t(1))}; }
Tensors sub(const Call& c) { return {at::sub(c.t(0), c.t(1))}; }
Tensors where(const Call& c) { return {at::where(c.t(0), c.t(1), c.t(2))}; }
Tensors fma(const Call& c) { return {at::add(at::mul(c.t(0), c.t(1)), c.t(2))}; }
Tensors round(const Call& c) { return {at::round(c.t(0))}; }
Tensors shift_right(const Call& c) { return {at::bitwise_right_shift(c.t(0), c.t(1))}; }
Tensors shift_left(const Call& c) { return {at::bitwise_left_shift(c.t(0), c.t(1))}; }

Tensors full(const Call& c) {
  return {at::full(c.ints(0), c.scalar(1), at::TensorOptions(c.dtype(2)).device(c.device(3)))};
}
Tensors iota(const Call& c) {
  const auto options = at::TensorOptions(c.dtype(3)).device(c.device(4));
  const Arg &start = c.node.args.at(1), &step = c.node.args.at(2);
  const bool whole = std::holds_alternative<sym::Expr>(start) && std::holds_alternative<sym::Expr>(step);
  const Tensor i = at::arange(c.integer(0), at::TensorOptions(whole ? at::kLong : at::kDouble).device(c.device(4)));
  return {at::add(at::mul(i, c.scalar(2)), c.scalar(1)).to(options)};
}

Tensors broadcast(const Call& c) {
  const auto sizes = c.ints(1), dims = c.ints(2);
  Tensor x = c.t(0);
  std::vector<int64_t> shape(sizes.size(), 1);
  for (size_t d = 0; d < dims.size(); ++d) shape[dims[d]] = x.size(static_cast<int64_t>(d));
  return {x.reshape(shape).expand(sizes)};
}
Tensors permute(const Call& c) { return {c.t(0).permute(c.ints(1))}; }
Tensors reshape(const Call& c) { return {c.t(0).reshape(c.ints(1))}; }
Tensor slice_of(Tensor x, const std::vector<int64_t>& starts, const std::vector<int64_t>& ends,
                const std::vector<int64_t>& steps) {
  for (size_t d = 0; d < starts.size(); ++d) x = at::slice(x, static_cast<int64_t>(d), starts[d], ends[d], steps[d]);
  return x;
}
Tensors slice(const Call& c) { return {slice_of(c.t(0), c.ints(1), c.ints(2), c.ints(3))}; }
Tensors flip(const Call& c) { return {at::flip(c.t(0), c.ints(1))}; }
Tensors diagonal(const Call& c) { return {at::diagonal(c.t(0), c.integer(1), c.integer(2), c.integer(3))}; }
Tensors as_strided(const Call& c) {
  const Tensor x = rowmajor(c.t(0));  // may itself be a part of a storage
  return {at::as_strided(x, c.ints(1), c.ints(2), x.storage_offset() + c.integer(3))};
}
// The layout of the result's type.
Tensors copy(const Call& c) {
  const TensorType& type = c.graph.type(c.node.outs.at(0));
  const Tensor x = c.t(0);
  Tensor out = type.strides.size() == type.sizes.size()
                   ? at::empty_strided(x.sizes(), to_ints(type.strides), x.options())
                   : at::empty_like(x);
  return {out.copy_(x)};
}

Tensors pad(const Call& c) {
  const auto lo = c.ints(1), hi = c.ints(2);
  const Tensor x = c.t(0);
  std::vector<int64_t> sizes, ends;
  for (size_t d = 0; d < lo.size(); ++d) {
    sizes.push_back(lo[d] + x.size(static_cast<int64_t>(d)) + hi[d]);
    ends.push_back(lo[d] + x.size(static_cast<int64_t>(d)));
  }
  Tensor out = at::full(sizes, c.scalar(3), x.options());
  slice_of(out, lo, ends, std::vector<int64_t>(lo.size(), 1)).copy_(x);
  return {out};
}
Tensors cat(const Call& c) { return {at::cat(c.list(0), c.integer(1))}; }
Tensors gather(const Call& c) { return {at::gather(c.t(0), c.integer(1), c.t(2))}; }
Tensors index(const Call& c) { return {at::index(c.t(0), c.optional_list(1))}; }
Tensors index_put(const Call& c) {
  return {at::index_put(c.t(0), c.optional_list(1), c.t(2), ops::as_bool(c.node.args.at(3)))};
}
Tensors scatter(const Call& c) {
  static const std::unordered_map<std::string, const char*> names = {
      {"add", "sum"}, {"mul", "prod"}, {"amax", "amax"}, {"amin", "amin"}};
  const std::string how = c.text(4);
  if (how == "none") return {at::scatter(c.t(0), c.integer(1), c.t(2), c.t(3))};
  return {at::scatter_reduce(c.t(0), c.integer(1), c.t(2), c.t(3), names.at(how), true)};
}
Tensors slice_scatter(const Call& c) {
  Tensor out = rowmajor(c.t(0)).clone();
  slice_of(out, c.ints(2), c.ints(3), c.ints(4)).copy_(c.t(1));
  return {out};
}
Tensors as_strided_scatter(const Call& c) {
  Tensor out = c.t(0).clone(at::MemoryFormat::Contiguous);
  at::as_strided(out, c.ints(2), c.ints(3), c.integer(4)).copy_(c.t(1));
  return {out};
}

// Reductions accumulate in f32 for the two-byte floats; an empty list of dims reduces nothing.
at::ScalarType accumulator(const Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16 ? at::kFloat : x.scalar_type();
}
Tensors sum(const Call& c) {
  const Tensor x = c.t(0);
  if (c.ints(1).empty()) return {x.clone()};
  return {at::sum(x, c.ints(1), false, accumulator(x)).to(x.scalar_type())};
}
Tensors prod(const Call& c) {
  Tensor x = c.t(0), y = x.to(accumulator(x));
  auto dims = c.ints(1);
  for (size_t i = dims.size(); i-- > 0;) y = at::prod(y, dims[i], false, y.scalar_type());
  return {y.to(x.scalar_type())};
}
template <Tensor (*F)(const Tensor&, at::IntArrayRef, bool)>
Tensors over_dims(const Call& c) {
  if (c.ints(1).empty()) return {c.t(0).clone()};
  return {F(c.t(0), c.ints(1), false)};
}
Tensor any_of(const Tensor& x, at::IntArrayRef dims, bool keep) {
  return at::any(x, at::OptionalIntArrayRef(dims), keep);
}
Tensor all_of(const Tensor& x, at::IntArrayRef dims, bool keep) {
  return at::all(x, at::OptionalIntArrayRef(dims), keep);
}
template <Tensor (*F)(const Tensor&, std::optional<int64_t>, bool)>
Tensors arg_reduce(const Call& c) {
  const Tensor x = c.t(0);
  const auto dims = c.ints(1);
  if (dims.empty()) return {at::zeros(x.sizes(), x.options().dtype(at::kLong))};
  std::vector<int64_t> order, kept;
  for (int64_t d = 0; d < x.dim(); ++d)
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
      order.push_back(d);
      kept.push_back(x.size(d));
    }
  order.insert(order.end(), dims.begin(), dims.end());
  kept.push_back(-1);
  if (dims.size() == 1) return {F(x, dims[0], false)};
  return {F(rowmajor(x.permute(order)).reshape(kept), -1, false)};
}
Tensors var(const Call& c) {
  const Tensor x = c.t(0), wide = x.to(accumulator(x));
  const double correction = ops::as_double(c.node.args.at(2));
  auto [v, m] = at::var_mean(wide, at::OptionalIntArrayRef(c.ints(1)), std::optional<at::Scalar>(correction), false);
  return {v.to(x.scalar_type()), m.to(x.scalar_type())};
}
Tensors cumsum(const Call& c) { return {at::cumsum(c.t(0), c.integer(1), c.t(0).scalar_type())}; }
Tensors cumprod(const Call& c) { return {at::cumprod(c.t(0), c.integer(1), c.t(0).scalar_type())}; }
Tensors cummax(const Call& c) { return {std::get<0>(at::cummax(c.t(0), c.integer(1)))}; }
Tensors cummin(const Call& c) { return {std::get<0>(at::cummin(c.t(0), c.integer(1)))}; }

// Windows: ATen wants one batch and one channel dim before the spatial ones.
Tensor with_channels(const Tensor& x, size_t spatial) {
  std::vector<int64_t> shape = {1, -1};
  for (size_t i = 0; i < spatial; ++i) shape.push_back(x.size(static_cast<int64_t>(x.dim() - spatial + i)));
  return x.reshape(shape);
}
Tensor without_channels(const Tensor& y, const Tensor& x, size_t spatial) {
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end() - static_cast<int64_t>(spatial));
  shape.insert(shape.end(), y.sizes().end() - static_cast<int64_t>(spatial), y.sizes().end());
  return y.reshape(shape);
}
Tensors max_pool(const Call& c) {
  const auto kernel = c.ints(1), stride = c.ints(2), padding = c.ints(3), dilation = c.ints(4);
  const bool ceil = ops::as_bool(c.node.args.at(5));
  const Tensor x = c.t(0), flat = with_channels(x, kernel.size());
  const Tensor y = kernel.size() == 1   ? at::max_pool1d(flat, kernel, stride, padding, dilation, ceil)
                   : kernel.size() == 2 ? at::max_pool2d(flat, kernel, stride, padding, dilation, ceil)
                                        : at::max_pool3d(flat, kernel, stride, padding, dilation, ceil);
  return {without_channels(y, x, kernel.size())};
}
Tensors avg_pool(const Call& c) {
  const auto kernel = c.ints(1), stride = c.ints(2), padding = c.ints(3);
  const bool ceil = ops::as_bool(c.node.args.at(4)), count_pad = ops::as_bool(c.node.args.at(5));
  std::optional<int64_t> divisor;
  if (!is_none(c.node.args.at(6))) divisor = c.integer(6);
  const Tensor x = c.t(0), flat = with_channels(x, kernel.size());
  FLASHOVER_CHECK(kernel.size() != 1 || !divisor) << "avg_pool over one dim has no divisor in ATen";
  const Tensor y = kernel.size() == 1   ? at::avg_pool1d(flat, kernel, stride, padding, ceil, count_pad)
                   : kernel.size() == 2 ? at::avg_pool2d(flat, kernel, stride, padding, ceil, count_pad, divisor)
                                        : at::avg_pool3d(flat, kernel, stride, padding, ceil, count_pad, divisor);
  return {without_channels(y, x, kernel.size())};
}

using Meaning = Tensors (*)(const Call&);
constexpr std::pair<Prim, Meaning> kMeanings[] = {
    {Prim::neg, unary<at::neg>},
    {Prim::abs, unary<at::abs>},
    {Prim::sign, unary<at::sign>},
    {Prim::ceil, unary<at::ceil>},
    {Prim::floor, unary<at::floor>},
    {Prim::round, round},
    {Prim::trunc, unary<at::trunc>},
    {Prim::exp, unary<at::exp>},
    {Prim::exp2, unary<at::exp2>},
    {Prim::expm1, unary<at::expm1>},
    {Prim::log, unary<at::log>},
    {Prim::log2, unary<at::log2>},
    {Prim::log10, unary<at::log10>},
    {Prim::log1p, unary<at::log1p>},
    {Prim::sqrt, unary<at::sqrt>},
    {Prim::rsqrt, unary<at::rsqrt>},
    {Prim::reciprocal, unary<at::reciprocal>},
    {Prim::sin, unary<at::sin>},
    {Prim::cos, unary<at::cos>},
    {Prim::tan, unary<at::tan>},
    {Prim::asin, unary<at::asin>},
    {Prim::acos, unary<at::acos>},
    {Prim::atan, unary<at::atan>},
    {Prim::sinh, unary<at::sinh>},
    {Prim::cosh, unary<at::cosh>},
    {Prim::tanh, unary<at::tanh>},
    {Prim::asinh, unary<at::asinh>},
    {Prim::acosh, unary<at::acosh>},
    {Prim::atanh, unary<at::atanh>},
    {Prim::erf, unary<at::erf>},
    {Prim::erfc, unary<at::erfc>},
    {Prim::erfinv, unary<at::erfinv>},
    {Prim::lgamma, unary<at::lgamma>},
    {Prim::digamma, unary<at::digamma>},
    {Prim::i0, unary<at::i0>},
    {Prim::sigmoid, unary<at::sigmoid>},
    {Prim::relu, unary<at::relu>},
    {Prim::logical_not, unary<at::logical_not>},
    {Prim::bitwise_not, unary<at::bitwise_not>},
    {Prim::isnan, unary<at::isnan>},
    {Prim::isinf, unary<at::isinf>},
    {Prim::signbit, unary<at::signbit>},
    {Prim::convert, convert},
    {Prim::add, add},
    {Prim::sub, sub},
    {Prim::mul, binary<at::mul>},
    {Prim::div, div},
    {Prim::floordiv, floordiv},
    {Prim::truncdiv, truncdiv},
    {Prim::fmod, binary<at::fmod>},
    {Prim::remainder, binary<at::remainder>},
    {Prim::pow, binary<at::pow>},
    {Prim::atan2, binary<at::atan2>},
    {Prim::hypot, binary<at::hypot>},
    {Prim::copysign, binary<at::copysign>},
    {Prim::nextafter, binary<at::nextafter>},
    {Prim::minimum, binary<at::minimum>},
    {Prim::maximum, binary<at::maximum>},
    {Prim::fmin, binary<at::fmin>},
    {Prim::fmax, binary<at::fmax>},
    {Prim::bitwise_and, binary<at::bitwise_and>},
    {Prim::bitwise_or, binary<at::bitwise_or>},
    {Prim::bitwise_xor, binary<at::bitwise_xor>},
    {Prim::shift_left, shift_left},
    {Prim::shift_right, shift_right},
    {Prim::eq, binary<at::eq>},
    {Prim::ne, binary<at::ne>},
    {Prim::lt, binary<at::lt>},
    {Prim::le, binary<at::le>},
    {Prim::gt, binary<at::gt>},
    {Prim::ge, binary<at::ge>},
    {Prim::where, where},
    {Prim::fma, fma},
    {Prim::full, full},
    {Prim::iota, iota},
    {Prim::broadcast, broadcast},
    {Prim::permute, permute},
    {Prim::reshape, reshape},
    {Prim::slice, slice},
    {Prim::flip, flip},
    {Prim::diagonal, diagonal},
    {Prim::as_strided, as_strided},
    {Prim::copy, copy},
    {Prim::pad, pad},
    {Prim::cat, cat},
    {Prim::gather, gather},
    {Prim::index, index},
    {Prim::index_put, index_put},
    {Prim::scatter, scatter},
    {Prim::slice_scatter, slice_scatter},
    {Prim::as_strided_scatter, as_strided_scatter},
    {Prim::sum, sum},
    {Prim::prod, prod},
    {Prim::amax, over_dims<at::amax>},
    {Prim::amin, over_dims<at::amin>},
    {Prim::any, over_dims<any_of>},
    {Prim::all, over_dims<all_of>},
    {Prim::argmax, arg_reduce<at::argmax>},
    {Prim::argmin, arg_reduce<at::argmin>},
    {Prim::var, var},
    {Prim::cumsum, cumsum},
    {Prim::cumprod, cumprod},
    {Prim::cummax, cummax},
    {Prim::cummin, cummin},
    {Prim::max_pool, max_pool},
    {Prim::avg_pool, avg_pool},
};
const std::unordered_map<Prim, Meaning>& meanings() {
  static const std::unordered_map<Prim, Meaning> table(std::begin(kMeanings), std::end(kMeanings));
  return table;
}

}  // namespace

std::vector<at::Tensor> eval_prim(const graph::Node& node, const graph::Graph& g, const TensorOf& tensor_of) {
  auto it = meanings().find(node.op->prim);
  if (it == meanings().end()) throw Declined("no meaning for " + node.op->name);
  Tensors out = it->second({node, g, tensor_of});
  // A number stays weak in type promotion, as it was when ATen made it.
  for (size_t i = 0; i < out.size(); ++i)
    if (g.type(node.outs[i]).wrapped_number) out[i].unsafeGetTensorImpl()->set_wrapped_number(true);
  return out;
}

}  // namespace flashover::aten
