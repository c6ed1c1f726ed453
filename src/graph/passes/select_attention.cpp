// ATen's flash attention for CPUs, and its backward, become the hand-written operators. On CUDA, attention whose sizes
// are symbols becomes the operator that does without plans for one size.
#include "graph/passes/select_attention.h"

#include <cmath>

#include "graph/analysis/symbolic.h"
#include "graph/rewrite/attention.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
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

constexpr RewriteRule kSelect[] = {
    {op::scaled_dot_product_attention, "attention of symbolic sizes on CUDA", serve_any_size},
    {op::_scaled_dot_product_flash_attention_for_cpu, "ATen's flash attention", replace_flash},
    {op::_scaled_dot_product_flash_attention_for_cpu_backward, "its backward", replace_flash_backward}};

}  // namespace

Graph select_attention(Graph g, const target::Providers& providers) {
  return rewrite(std::move(g), kSelect, &providers);
}

}  // namespace flashover::graph
