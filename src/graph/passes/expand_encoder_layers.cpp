// Step by step as ATen's native_multi_head_attention and transformer_encoder_layer_forward compute them.
#include "graph/passes/expand_encoder_layers.h"

#include <array>
#include <cmath>
#include <limits>

#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

// The rows of an affine function: weight [columns, inner], bias [columns]; of a norm both are [width].
struct Affine {
  ValueId weight = kNoValue, bias = kNoValue;
};
Affine affine_at(const Node& n, size_t first) {
  return {ops::as_value(n.args[first]), ops::as_value(n.args[first + 1])};
}

struct EncoderAttention {
  std::array<ValueId, 3> from;  // query, key, value: [batch, length, width]
  Affine in, out;               // the first makes all three: [3 * width, width]
  int64_t heads = 0;
  ValueId mask = kNoValue;  // where it is not 0, a key is left out
  int64_t mask_kind = 0;    // its sizes, by ATen's number: [query, key], [batch, key], [batch, head, query, key]
};

// Where an operator's arguments stand; those of the second projection follow the first one's.
struct Places {
  size_t heads, in, mask, mask_kind;
};
EncoderAttention attention_at(const Node& n, const std::array<ValueId, 3>& from, const Places& at) {
  return {.from = from,
          .in = affine_at(n, at.in),
          .out = affine_at(n, at.in + 2),
          .heads = ops::as_int(n.args[at.heads]),
          .mask = ops::as_optional_value(n.args[at.mask]).value_or(kNoValue),
          .mask_kind = is_none(n.args[at.mask_kind]) ? -1 : ops::as_int(n.args[at.mask_kind])};
}

bool has_sizes(Builder& b, ValueId v, const Sizes& sizes, DType dtype) {
  const TensorType& t = b.type(v);
  return t.dtype == dtype && same_sizes(t.sizes, sizes);
}
bool fits_affine(Builder& b, const Affine& f, const sym::Expr& columns, const sym::Expr& inner, DType dtype) {
  return has_sizes(b, f.weight, {columns, inner}, dtype) && has_sizes(b, f.bias, {columns}, dtype);
}

bool is_understood(Builder& b, const EncoderAttention& a) {
  const TensorType x = b.type(a.from[0]);
  if (x.device.type != DeviceType::kCPU || !is_floating(x.dtype) || x.rank() != 3 || !x.sizes[2].is_const())
    return false;
  const int64_t width = x.sizes[2].value();
  for (ValueId v : a.from)
    if (!has_sizes(b, v, x.sizes, x.dtype)) return false;
  if (a.heads <= 0 || width <= 0 || width % a.heads != 0 || x.sizes[0].is_const(0) || x.sizes[1].is_const(0))
    return false;
  if (!fits_affine(b, a.in, 3 * width, width, x.dtype) || !fits_affine(b, a.out, width, width, x.dtype)) return false;
  if (a.mask == kNoValue) return true;
  const TensorType mask = b.type(a.mask);
  const Sizes by_kind[] = {
      {x.sizes[1], x.sizes[1]}, {x.sizes[0], x.sizes[1]}, {x.sizes[0], a.heads, x.sizes[1], x.sizes[1]}};
  return a.mask_kind >= 0 && a.mask_kind < 3 && !info(mask.dtype).complex &&
         same_sizes(mask.sizes, by_kind[a.mask_kind]);
}

// x [..., inner] -> [..., columns]
ValueId apply_affine(Builder& b, const Affine& f, ValueId x) {
  Sizes sizes = b.sizes(x);
  sym::Expr rows = 1;
  for (size_t d = 0; d + 1 < sizes.size(); ++d) rows = rows * sizes[d];
  const ValueId flat = b.reshape(x, {rows, sizes.back()}), matrix = b.permute(f.weight, {1, 0});
  const ValueId y = b.emit(op::addmm, {Ref{f.bias}, Ref{flat}, Ref{matrix}, sym::Expr(1), sym::Expr(1)});
  sizes.back() = b.size(f.weight, 0);
  return b.reshape(y, sizes);
}

// Query, key and value by head: [batch, heads, length, head size]. One product makes those that are of one tensor.
std::array<ValueId, 3> project(Builder& b, const EncoderAttention& a) {
  const Sizes sizes = b.sizes(a.from[0]);
  const int64_t width = sizes[2].value();
  const auto by_head = [&](ValueId part) {
    return b.permute(b.reshape(part, {sizes[0], sizes[1], a.heads, width / a.heads}), {0, 2, 1, 3});
  };
  std::array<ValueId, 3> out;
  for (size_t first = 0; first < 3;) {
    size_t last = first;
    while (last + 1 < 3 && a.from[last + 1] == a.from[first]) ++last;
    const auto row = [&](size_t i) { return sym::Expr(static_cast<int64_t>(i) * width); };
    const auto rows = [&](ValueId v) { return first == 0 && last == 2 ? v : b.slice(v, 0, row(first), row(last + 1)); };
    const ValueId made = apply_affine(b, {rows(a.in.weight), rows(a.in.bias)}, a.from[first]);
    for (size_t i = first; i <= last; ++i)
      out[i] = by_head(first == last ? made : b.slice(made, 2, row(i - first), row(i - first + 1)));
    first = last + 1;
  }
  return out;
}

// What is added to the scores [batch, heads, query, key] for it: -inf or 0. (Rows without a key become NaN, as in eager.)
ValueId bias_of_mask(Builder& b, const EncoderAttention& a, DType dtype) {
  ValueId left_out =
      b.dtype(a.mask) == DType::kBool ? a.mask : b.ne(a.mask, b.expand(b.scalar_like(a.mask, 0.0), b.sizes(a.mask)));
  if (a.mask_kind == 1) left_out = b.unsqueeze(b.unsqueeze(left_out, 1), 1);
  const Device device = b.type(a.mask).device;
  const ValueId zero = b.full({}, 0.0, dtype, device);
  return b.where(left_out, b.full({}, -std::numeric_limits<double>::infinity(), dtype, device), zero);
}

struct Attended {
  ValueId result;   // [batch, length, width]
  ValueId weights;  // [batch, heads, query, key]; kNoValue: not asked for
};

Attended attend(Builder& b, const EncoderAttention& a, bool need_weights) {
  const auto [q, k, v] = project(b, a);
  const Sizes sizes = b.sizes(a.from[0]), heads = b.sizes(q);
  const DType dtype = b.dtype(q);
  ValueId y, weights = kNoValue;
  if (a.mask == kNoValue && !need_weights) {
    y = b.emit_all(op::_scaled_dot_product_flash_attention_for_cpu,
                   {Ref{q}, Ref{k}, Ref{v}, 0.0, false, Arg(), Arg()})[0];
  } else {
    const sym::Expr all = heads[0] * heads[1];
    const auto flat = [&](ValueId x) { return b.reshape(x, {all, heads[2], b.size(x, -1)}); };
    const ValueId scale = b.full({}, 1 / std::sqrt(static_cast<double>(heads[3].value())), dtype, b.type(q).device);
    const ValueId product = b.emit(op::bmm, {Ref{flat(q)}, Ref{b.permute(flat(k), {0, 2, 1})}});
    ValueId scores =
        b.reshape(b.emit(op::mul_Tensor, {Ref{product}, Ref{scale}}), {heads[0], heads[1], heads[2], heads[2]});
    if (a.mask != kNoValue)
      scores = b.emit(op::add_Tensor, {Ref{scores}, Ref{bias_of_mask(b, a, dtype)}, sym::Expr(1)});
    weights = b.emit(op::_softmax, {Ref{scores}, sym::Expr(3), false});
    y = b.reshape(b.emit(op::bmm, {Ref{b.reshape(weights, {all, heads[2], heads[2]})}, Ref{flat(v)}}), heads);
  }
  return {apply_affine(b, a.out, b.reshape(b.permute(y, {0, 2, 1, 3}), sizes)), weights};
}

// (query, key, value, width, heads, in_proj, out_proj, 9: mask, need_weights, average_weights, mask_type)
bool expand_attention(Rewriter& r, const Node& n, Values& results, const void* /*user*/) {
  Builder& b = r.b;
  const EncoderAttention a =
      attention_at(n, {ops::as_value(n.args[0]), ops::as_value(n.args[1]), ops::as_value(n.args[2])},
                   {.heads = 4, .in = 5, .mask = 9, .mask_kind = 12});
  if (!is_understood(b, a)) return false;
  const bool need_weights = n.outs[1] != kNoValue;
  const Attended made = attend(b, a, need_weights);
  results = {made.result, kNoValue};
  if (!need_weights) return true;
  results[1] = made.weights;
  if (!ops::as_bool(n.args[11])) return true;
  const ValueId sum = b.sum(b.convert(made.weights, DType::kF32), {1});
  results[1] = b.convert(b.div(sum, b.full_like(sum, static_cast<double>(a.heads))), b.dtype(made.weights));
  return true;
}

// (x, width, heads, 3: in_proj, out_proj, 7: gelu, norm_first, eps, 10: norm1, norm2, 14: linear1, linear2, 18: mask,
// mask_type)
bool expand_layer(Rewriter& r, const Node& n, Values& results, const void* /*user*/) {
  Builder& b = r.b;
  const ValueId x = ops::as_value(n.args[0]);
  EncoderAttention a = attention_at(n, {x, x, x}, {.heads = 2, .in = 3, .mask = 18, .mask_kind = 19});
  if (!is_understood(b, a)) return false;
  const Affine first = affine_at(n, 14), second = affine_at(n, 16);
  const double eps = ops::as_double(n.args[9]);
  const Affine norms[] = {affine_at(n, 10), affine_at(n, 12)};
  const DType dtype = b.dtype(x);
  const sym::Expr width = b.size(x, 2), inner = b.size(first.weight, 0);
  if (!fits_affine(b, first, inner, width, dtype) || !fits_affine(b, second, width, inner, dtype)) return false;
  for (const Affine& norm : norms)
    for (ValueId v : {norm.weight, norm.bias})
      if (!has_sizes(b, v, {width}, dtype)) return false;

  const bool norm_first = ops::as_bool(n.args[8]);
  const auto add = [&](ValueId p, ValueId q) { return b.emit(op::add_Tensor, {Ref{p}, Ref{q}, sym::Expr(1)}); };
  const auto normed = [&](const Affine& norm, ValueId v) {
    return b.emit_all(op::native_layer_norm, {Ref{v}, Sizes{width}, Ref{norm.weight}, Ref{norm.bias}, eps})[0];
  };
  if (norm_first) a.from.fill(normed(norms[0], x));
  ValueId y = add(attend(b, a, false).result, x);
  if (!norm_first) y = normed(norms[0], y);
  ValueId hidden = apply_affine(b, first, norm_first ? normed(norms[1], y) : y);
  hidden =
      ops::as_bool(n.args[7]) ? b.emit(op::gelu, {Ref{hidden}, std::string("none")}) : b.emit(op::relu, {Ref{hidden}});
  y = add(apply_affine(b, second, hidden), y);
  results = {norm_first ? y : normed(norms[1], y)};
  return true;
}

constexpr RewriteRule kEncoderRules[] = {
    {op::_native_multi_head_attention, "its products, softmax or attention", expand_attention},
    {op::_transformer_encoder_layer_fwd, "attention, norms and the feed-forward part", expand_layer}};

}  // namespace

Graph expand_encoder_layers(Graph g) { return rewrite(std::move(g), kEncoderRules); }

}  // namespace flashover::graph
