// ATen's flash attention for CPUs, and its backward, become the hand-written operators. On CUDA, attention whose sizes
// are symbols becomes the operator that does without plans for one size. flex_attention becomes one kernel.
#include "graph/passes/select_attention.h"

#include <cmath>

#include "graph/analysis/symbolic.h"
#include "graph/rewrite/attention.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "graph/rewrite/score_function.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

// (query, key, value, ..., dropout_p, is_causal, attn_mask, scale) of it or, behind others, of its backward.
struct Flash {
  ValueId q, k, v;
  RefList biases;
  double scale = 1;
  bool causal = false;
};

std::optional<Flash> match_flash(Rewriter& r, const Node& n, const target::Providers& providers, size_t first,
                                 size_t options) {
  Flash f{
      .q = ops::as_value(n.args[first]), .k = ops::as_value(n.args[first + 1]), .v = ops::as_value(n.args[first + 2])};
  const TensorType query = r.b.type(f.q), key = r.b.type(f.k), value = r.b.type(f.v);
  const auto fits = [&](const TensorType& t) {
    return t.device.type == DeviceType::kCPU && t.rank() == 4 && dense_last(t) && t.dtype == query.dtype &&
           sym::known_eq(t.sizes[0], query.sizes[0]) && sym::known_eq(t.sizes[1], query.sizes[1]);
  };
  if (!fits(query) || !fits(key) || !fits(value) || !ops::is_number(n.args[options], 0)) return std::nullopt;
  if (!query.sizes[3].is_const() || !value.sizes[3].is_const() ||  // lengths may be symbols: then typical ones decide
      !suits_attention(providers, query.dtype, query.sizes[2].hint(), key.sizes[2].hint(), query.sizes[3].value(),
                       value.sizes[3].value()))
    return std::nullopt;
  if (const auto mask = ops::as_optional_value(n.args[options + 2])) {
    const TensorType m = r.b.type(*mask);
    if (m.device.type != DeviceType::kCPU || m.rank() < 2 || m.rank() > 4 ||
        !sym::known_eq(m.sizes.back(), key.sizes[2]) || (m.dtype != DType::kF32 && m.dtype != DType::kBF16) ||
        !dense_last(m))
      return std::nullopt;
    f.biases.push_back(Ref{*mask});
  }
  const Arg& scale = n.args[options + 3];
  f.scale = is_none(scale) ? 1 / std::sqrt(static_cast<double>(query.sizes[3].value())) : ops::as_double(scale);
  f.causal = ops::as_bool(n.args[options + 1]);
  return f;
}

bool replace_flash(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto f = match_flash(r, n, *static_cast<const target::Providers*>(user), 0, 3);
  if (!f) return false;
  std::vector<Arg> args{Ref{f->q}, Ref{f->k}, Ref{f->v}, f->biases, f->scale, f->causal, /*zero_if_none=*/true};
  const TensorType out = heads_inside(r.b.type(f->q), r.b.size(f->v, -1));
  results.assign(n.outs.size(), kNoValue);
  if (n.outs.size() > 1 && n.outs[1] != kNoValue && r.uses(n.outs[1]) > 0)
    results = r.b.emit_all("flashover.attention_kept.default", std::move(args), {out, r.b.type(n.outs[1])});
  else
    results[0] = r.b.emit("flashover.attention.default", std::move(args), out);
  return true;
}

// (grad, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale)
bool replace_flash_backward(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto f = match_flash(r, n, *static_cast<const target::Providers*>(user), 1, 6);
  if (!f || r.b.dtype(f->q) != DType::kBF16) return false;
  const ValueId out = ops::as_value(n.args[4]);
  if (!dense_last(r.b.type(out))) return false;
  std::vector<TensorType> types;
  for (ValueId v : {f->q, f->k, f->v}) types.push_back(heads_inside(r.b.type(v), r.b.size(v, -1)));
  results =
      r.b.emit_all("flashover.attention_backward.default",
                   {n.args[0], Ref{f->q}, Ref{f->k}, Ref{f->v}, Ref{out}, n.args[5], f->biases, f->scale, f->causal},
                   std::move(types));
  return true;
}

// cuDNN makes a plan for each size, which takes 40 ms; a cache that grows has another size at each step.
bool serve_any_size(Rewriter& r, const Node& n, Values& results, const void* /*user*/) {
  const auto symbolic = [&](size_t i) { return is_symbolic(r.b.type(ops::as_value(n.args[i]))); };
  const TensorType out = r.b.type(n.outs[0]);
  if (out.device.type != DeviceType::kCUDA || !(symbolic(0) || symbolic(1) || symbolic(2))) return false;
  results = {r.b.emit("flashover.attention_of_any_size.default", n.args, out)};
  return true;
}

// ---- flex_attention

// Behind views: one number in all places.
bool is_all(Rewriter& r, ValueId v, double number) {
  for (const Node* n = r.def(v); n; n = r.def(v)) {
    if (n->op->prim == Prim::full) return ops::is_number(n->args[1], number);
    if (n->op->kind != ops::OpKind::kView && n->op->prim != Prim::copy) return false;
    v = ops::as_value(n->args[0]);
  }
  return false;
}

// A tensor of a batch of heads, of numbers that kernels widen to f32.
bool is_heads(const TensorType& t, Device device) {
  constexpr int64_t kWidest = 256;
  return t.rank() == 4 && !t.opaque && t.device == device && (t.dtype == DType::kF32 || is_reduced(t.dtype)) &&
         t.sizes[1].is_const() && t.sizes[1].value() > 0 && t.sizes[3].is_const() && t.sizes[3].value() > 0 &&
         t.sizes[3].value() <= kWidest;
}
// Keys or values beside queries.
bool fits_query(const TensorType& q, const TensorType& t) {
  return t.dtype == q.dtype && sym::known_eq(t.sizes[0], q.sizes[0]) && q.sizes[1].value() % t.sizes[1].value() == 0;
}

struct Lists {
  RefList blocks;  // none: all keys are seen
  Sizes block;
};
// Counts and indices of blocks as the kernel takes them.
std::optional<Lists> match_lists(Rewriter& r, const Node& n, size_t lists, const TensorType& q) {
  constexpr int64_t kNoBlock = int64_t{1} << 30;  // of torch's, where there is no mask
  constexpr int64_t kStep = 16;                   // keys come in whole vectors, blocks of queries in tensor cores' rows
  Lists out{ops::as_values(n.args[lists]), ops::as_sizes(n.args[lists + 1])};
  if (out.blocks.empty()) return Lists{};
  if (out.blocks.size() != 4 || out.block.size() != 2) return std::nullopt;
  for (sym::Expr b : out.block)
    if (!b.is_const() || b.value() <= 0 || b.value() % kStep != 0) return std::nullopt;
  if (out.block[0].value() >= kNoBlock && out.block[1].value() >= kNoBlock) return Lists{};
  if ((out.blocks[2].id == kNoValue) != (out.blocks[3].id == kNoValue)) return std::nullopt;
  for (size_t i = 0; i < 4; ++i) {
    if (out.blocks[i].id == kNoValue) {
      if (i < 2) return std::nullopt;
      continue;
    }
    const TensorType t = r.b.type(out.blocks[i].id);
    if (t.dtype != DType::kI32 || t.device != q.device || t.rank() != (i % 2 ? 4 : 3)) return std::nullopt;
    for (size_t d = 0; d < 2; ++d)
      if (!t.sizes[d].is_const(1) && !sym::known_eq(t.sizes[d], q.sizes[d])) return std::nullopt;
  }
  return out;
}

ValueId with_dense_last(Rewriter& r, ValueId v) {
  const TensorType t = r.b.type(v);
  return dense_last(t) ? v : r.b.emit(Prim::copy, {Ref{v}}, dense_type(t));
}

// What the kernel's node says beside its values: operands of products, what is captured, the function.
struct Fused {
  RefList left, right, captured;
  std::vector<double> scales;
  std::string function;
};
// `heads`: of keys and values.
std::optional<Fused> match_function(Rewriter& r, ValueId score, ValueId mask, int64_t heads) {
  const Device device = r.b.type(score).device;
  std::optional<ScoreFunction> f = score_function(r, score, mask);
  if (!f || f->products.empty()) return std::nullopt;
  std::vector<std::pair<ValueId, ValueId>> operands;
  Fused out;
  for (const Node* product : f->products) {
    const ValueId a = ops::as_value(product->args[0]), b = ops::as_value(product->args[1]);
    if (!is_heads(r.b.type(a), device) || !is_heads(r.b.type(b), device) || !fits_query(r.b.type(a), r.b.type(b)) ||
        r.b.type(b).sizes[1].value() != heads)
      return std::nullopt;
    operands.emplace_back(a, b);
    out.scales.push_back(ops::as_double(product->args[2]));
  }
  for (const auto& [a, b] : operands) {
    out.left.push_back(Ref{with_dense_last(r, a)});
    out.right.push_back(Ref{with_dense_last(r, b)});
  }
  for (ValueId c : f->captured) out.captured.push_back(Ref{c});
  out.function = std::move(f->text);
  return out;
}

// (scores, mask, q, v, blocks, block)
bool fuse_flex(Rewriter& r, const Node& n, Values& results, const void* /*user*/) {
  if (n.outs[0] == kNoValue) return false;
  const ValueId score = ops::as_value(n.args[0]);
  ValueId mask = ops::as_optional_value(n.args[1]).value_or(kNoValue);
  const TensorType q = r.b.type(ops::as_value(n.args[2])), v = r.b.type(ops::as_value(n.args[3])), s = r.b.type(score);
  if (!is_heads(q, q.device) || !is_heads(v, q.device) || !fits_query(q, v) || s.rank() != 4 ||
      (s.dtype != DType::kF32 && !is_reduced(s.dtype)) || !sym::known_eq(s.sizes[3], v.sizes[2]))
    return false;
  for (size_t d = 0; d < 3; ++d)
    if (!sym::known_eq(s.sizes[d], q.sizes[d])) return false;
  const std::optional<Lists> lists = match_lists(r, n, 4, q);
  if (!lists) return false;
  if (mask != kNoValue && is_all(r, mask, 1)) mask = kNoValue;
  if (mask != kNoValue && (r.b.dtype(mask) != DType::kBool || !same_sizes(r.b.sizes(mask), s.sizes))) return false;
  std::optional<Fused> f = match_function(r, score, mask, v.sizes[1].value());
  if (!f) return false;
  const Ref values{with_dense_last(r, ops::as_value(n.args[3]))};
  const TensorType out = r.b.type(n.outs[0]), row{.dtype = DType::kF32,
                                                  .device = q.device,
                                                  .sizes = {q.sizes[0], q.sizes[1], q.sizes[2]},
                                                  .strides = contiguous_strides({q.sizes[0], q.sizes[1], q.sizes[2]})};
  results = r.b.emit_all(op::flex_fused,
                         {f->left, f->right, std::move(f->scales), n.args[2], values, lists->blocks, lists->block,
                          f->captured, std::move(f->function)},
                         {out, row, row});
  return true;
}

// (weights, x, like, blocks, block): on CUDA, since eager has no backward on the CPU.
template <bool columns>
bool fuse_flex_sum(Rewriter& r, const Node& n, Values& results, const void* /*user*/) {
  const ValueId weights = ops::as_value(n.args[0]), summed = ops::as_value(n.args[1]);
  const TensorType w = r.b.type(weights), x = r.b.type(summed), like = r.b.type(ops::as_value(n.args[2]));
  if (w.device.type != DeviceType::kCUDA || w.rank() != 4 || w.dtype != DType::kF32 || !is_heads(x, w.device) ||
      !is_heads(like, w.device) || x.dtype != like.dtype || !w.sizes[1].is_const())
    return false;
  const TensorType& keys = columns ? like : x;
  const TensorType& queries = columns ? x : like;
  for (size_t d = 0; d < 3; ++d)
    if (!sym::known_eq(queries.sizes[d], w.sizes[d])) return false;
  if (!sym::known_eq(keys.sizes[0], w.sizes[0]) || !sym::known_eq(keys.sizes[2], w.sizes[3]) ||
      w.sizes[1].value() % keys.sizes[1].value() != 0)
    return false;
  const std::optional<Lists> lists = match_lists(r, n, 3, w);
  if (!lists) return false;
  std::optional<Fused> f = match_function(r, weights, kNoValue, keys.sizes[1].value());
  if (!f) return false;
  const Ref values{with_dense_last(r, summed)};
  const TensorType out = r.b.type(n.outs[0]);
  results = {r.b.emit(columns ? op::flex_fused_columns : op::flex_fused_rows,
                      {f->left, f->right, std::move(f->scales), n.args[2], values, lists->blocks, lists->block,
                       f->captured, std::move(f->function)},
                      out)};
  return true;
}

constexpr RewriteRule kSelect[] = {
    {op::flex_attend, "flex_attention", fuse_flex},
    {op::flex_rows, "sums over keys of its backward", fuse_flex_sum<false>},
    {op::flex_columns, "sums over queries of its backward", fuse_flex_sum<true>},
    {op::scaled_dot_product_attention, "attention of symbolic sizes on CUDA", serve_any_size},
    {op::_scaled_dot_product_flash_attention_for_cpu, "ATen's flash attention", replace_flash},
    {op::_scaled_dot_product_flash_attention_for_cpu_backward, "its backward", replace_flash_backward}};

}  // namespace

Graph select_attention(Graph g, const target::Providers& providers) {
  return rewrite(std::move(g), kSelect, &providers);
}

}  // namespace flashover::graph
