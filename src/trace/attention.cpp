// Scaled dot product attention on CUDA, recorded as one node where no gradient is asked for: which library computes it
// depends on the mask, and passes may find out more about that than the program shows.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <c10/core/GradMode.h>

#include "base/check.h"
#include "ops/args.h"
#include "torch/autocast.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

// What torch.autocast does to this operator; the interception stands above it.
at::Tensor casted(const at::Tensor& t) {
  const bool excluded = c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCUDA);
  if (excluded || !t.defined() || !autocast::is_enabled(at::kCUDA)) return t;
  return autocast::cast(t, at::kCUDA);
}

// The library that ATen would take for these operands; flash where there is no device to ask. (At other sizes it may
// take another one. Then the strides of the result may be others than recorded, which the executor looks at.)
at::SDPBackend choice(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                      bool causal, std::optional<double> scale, bool gqa) {
  if (!at::globalContext().hasCUDA())
    return mask.defined() ? at::SDPBackend::efficient_attention : at::SDPBackend::flash_attention;
  BelowEverything plain;
  InternalScope internal;
  const auto tagged = [](const at::Tensor& t) {
    return tagged_companion(*t.unsafeGetTensorImpl(), CompanionSizes::kNow);
  };
  return static_cast<at::SDPBackend>(at::_fused_sdp_choice(tagged(q), tagged(k), tagged(v),
                                                           mask.defined() ? std::optional(tagged(mask)) : std::nullopt,
                                                           0.0, causal, scale, gqa));
}

}  // namespace

std::optional<at::Tensor> record_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                           const std::optional<at::Tensor>& given_mask, double dropout, bool causal,
                                           std::optional<double> scale, bool gqa) {
  auto* recorder = static_cast<Recorder*>(current());
  if (!recorder || recorder->declined() || !query.is_cuda() || !key.is_cuda() || !value.is_cuda() || dropout != 0)
    return {};
  const at::Tensor no_mask;
  if (c10::GradMode::is_enabled()) {
    bool wanted = false;
    for (const at::Tensor* t : {&query, &key, &value, given_mask ? &*given_mask : &no_mask})
      wanted = wanted || (t->defined() && t->requires_grad());
    if (wanted) return {};
  }
  const at::Tensor q = casted(query), k = casted(key), v = casted(value),
                   mask = given_mask ? casted(*given_mask) : no_mask;
  for (const at::Tensor* t : {&q, &k, &v})
    if (!trace_impl(*t) || t->dim() != 4 || t->dtype() != q.dtype() || t->device() != q.device() ||
        trace_impl(*t)->has_no_elements())
      return {};
  if (mask.defined() &&
      (!trace_impl(mask) || mask.dim() < 2 || mask.dim() > 4 || mask.device() != q.device() || causal))
    return {};
  const auto dtype = q.scalar_type();
  if (dtype != at::kHalf && dtype != at::kBFloat16 && dtype != at::kFloat) return {};
  if (mask.defined() && mask.scalar_type() != at::kBool && mask.scalar_type() != dtype) return {};
  // Sizes that ATen would broadcast, reject or pad take its own way.
  const sym::AskScope ask(recorder->sizes().empty() ? nullptr : &recorder->sizes());
  const TensorType tq = recorder->type_of(q), tk = recorder->type_of(k), tv = recorder->type_of(v);
  const sym::Expr heads = tq.sizes[1], rows = tq.sizes[2], width = tq.sizes[3];
  const auto same_size = [](const TensorType& a, const TensorType& b, size_t d) {
    return sym::known_eq(a.sizes[d], b.sizes[d]);
  };
  const bool heads_fit = same_size(tk, tv, 1) &&
                         (same_size(tq, tk, 1) || (gqa && sym::known_eq(sym::mod(heads, tk.sizes[1]), sym::Expr(0))));
  if (!same_size(tq, tk, 0) || !same_size(tq, tv, 0) || !heads_fit || !same_size(tk, tv, 2) || !same_size(tq, tk, 3) ||
      !same_size(tq, tv, 3) || !sym::known_divisible(width, 8))
    return {};
  if (mask.defined()) {
    const TensorType tm = recorder->type_of(mask);
    const Sizes scores = {tq.sizes[0], heads, rows, tk.sizes[2]};
    for (size_t d = 0; d < tm.rank(); ++d) {
      const sym::Expr size = tm.sizes[d], whole = scores[4 - tm.rank() + d];
      if (!size.is_const(1) && !sym::known_eq(size, whole)) return {};
    }
  }
  const auto backend = choice(q, k, v, mask, causal, scale, gqa);
  if (backend == at::SDPBackend::error || (backend == at::SDPBackend::math && !mask.defined())) return {};

  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::scaled_dot_product_attention", "");
  try {
    OpFacts& facts = facts_of(op);
    Stack stack = {q,
                   k,
                   v,
                   mask.defined() ? c10::IValue(mask) : c10::IValue(),
                   0.0,
                   causal,
                   scale ? c10::IValue(*scale) : c10::IValue(),
                   gqa};
    std::vector<Arg> args = recorder->collect(facts, stack, 0);
    TensorType type = tq;
    type.offset = 0;
    type.wrapped_number = false;
    // Who reads its operands as [batch, row, head, width] writes the result like that, too.
    const bool like_query = backend == at::SDPBackend::flash_attention || backend == at::SDPBackend::cudnn_attention;
    if (like_query && ops::is_dense(tq.sizes, tq.strides)) {
      // as it is
    } else if (backend == at::SDPBackend::math) {
      type.strides = {heads * rows * width, rows * width, width, sym::Expr(1)};
    } else if (like_query && sym::known_le(tq.strides[2], tq.strides[1])) {
      type.strides = {heads * rows * width, rows * width, width, sym::Expr(1)};
    } else {
      type.strides = {rows * heads * width, width, heads * width, sym::Expr(1)};
    }
    ++recorder->counters().ops;
    ++recorder->counters().own_rules;
    std::vector<TensorType> outs = {std::move(type)};
    const ValueId out = recorder->add_node(facts.op, std::move(args), std::move(outs)).outs[0];
    return recorder->fresh(out);
  } catch (const Declined& e) {
    recorder->throw_decline(e.what());
  }
}

}  // namespace flashover::trace
