// Registers them with torch's dispatcher: convolutions that do their batch in parts, attention of any size, the
// generator's state.
#include "run/cuda/operators.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/cudnn_convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <limits>
#include <memory>
#include <vector>

#include "run/cuda/random.h"
#include "torch/convolved.h"

namespace flashover::run::cuda {
namespace {

// aten.convolution of tensors that are channels first, with a part of the batch at a time: cuDNN's own memory is that
// of one part.
at::Tensor convolution_in_parts(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
                                at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups, int64_t parts) {
  const at::Context& context = at::globalContext();
  if (!context.userEnabledCuDNN() || !input.is_contiguous() || !weight.is_contiguous())
    return at::convolution(input, weight, std::nullopt, stride, padding, dilation, false,
                           std::vector<int64_t>(stride.size(), 0), groups);
  const std::vector<int64_t> sizes = aten::convolved_sizes(input.sizes(), weight.sizes(), stride, padding, dilation);
  at::Tensor out = at::empty(sizes, input.options());
  const bool deterministic = context.deterministicCuDNN() || context.deterministicAlgorithms();
  for (int64_t p = 0, first = 0; p < parts; ++p) {
    const int64_t last = sizes[0] * (p + 1) / parts;
    at::Tensor to = out.narrow(0, first, last - first);
    at::cudnn_convolution_out(to, input.narrow(0, first, last - first), weight, padding, stride, dilation, groups,
                              context.benchmarkCuDNN(), deterministic, /*allow_tf32=*/true);
    first = last;
  }
  return out;
}

// A mask as the memory-efficient kernel wants it: of the operands' dtype, whole, rows that start at multiples of 16.
at::Tensor bias_of(const at::Tensor& mask, const at::Tensor& q, const at::Tensor& k) {
  at::Tensor bias = mask;
  if (mask.scalar_type() == at::kBool)
    bias = at::where(mask, at::scalar_tensor(0, q.options()),
                     at::scalar_tensor(-std::numeric_limits<double>::infinity(), q.options()));
  const int64_t keys = k.size(2), wider = (16 - keys % 16) % 16;
  bias = bias.expand({q.size(0), q.size(1), q.size(2), keys});
  if (wider != 0) bias = at::constant_pad_nd(bias, {0, wider}).slice(-1, 0, keys);
  return bias;
}

// aten.scaled_dot_product_attention, but by kernels that need no plan for each size: flash without a mask and the
// memory-efficient one with it, where ATen would take cuDNN's and the program allows the other. (Flash counts what a
// causal query sees from the last key, ATen from the first: only with as many keys as queries are they the same.)
at::Tensor attention_of_any_size(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const std::optional<at::Tensor>& mask, double dropout, bool causal,
                                 std::optional<double> scale, bool gqa) {
  const at::Context& context = at::globalContext();
  const auto chosen = static_cast<at::SDPBackend>(at::_fused_sdp_choice(q, k, v, mask, dropout, causal, scale, gqa));
  const bool masked = mask.has_value() && mask->defined();
  const bool cudnn = chosen == at::SDPBackend::cudnn_attention && dropout == 0 && q.stride(-1) == 1 &&
                     k.stride(-1) == 1 && v.stride(-1) == 1;
  if (cudnn && !masked && context.userEnabledFlashSDP() && (!causal || q.size(2) == k.size(2)))
    return std::get<0>(at::_scaled_dot_product_flash_attention(q, k, v, 0.0, causal, false, scale));
  if (cudnn && masked && context.userEnabledMemEfficientSDP()) {
    const int64_t groups = q.size(1) / k.size(1);
    const auto each = [&](const at::Tensor& t) { return groups == 1 ? t : t.repeat_interleave(groups, 1); };
    return std::get<0>(at::_scaled_dot_product_efficient_attention(q, each(k), each(v), bias_of(*mask, q, k), false,
                                                                   0.0, causal, scale));
  }
  return at::scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale, gqa);
}

}  // namespace

void register_operators() {
  static const bool done = [] {
    // Taken back where there is no memory for all of it: the next call registers them again.
    auto whole =
        std::make_unique<torch::Library>(torch::Library::FRAGMENT, "flashover", std::nullopt, __FILE__, __LINE__);
    torch::Library& library = *whole;
    library.def(
        "convolution_in_parts(Tensor x, Tensor weight, int[] stride, int[] padding, int[] dilation, int "
        "groups, int parts) -> Tensor");
    library.impl("convolution_in_parts", torch::dispatch(c10::DispatchKey::CUDA, convolution_in_parts));
    library.def(
        "attention_of_any_size(Tensor q, Tensor k, Tensor v, Tensor? mask, float dropout, bool causal, float? scale, "
        "bool gqa) -> Tensor");
    library.impl("attention_of_any_size", torch::dispatch(c10::DispatchKey::CUDA, attention_of_any_size));
    library.def("philox_state(int increment, Device device) -> Tensor", {at::Tag::nondeterministic_seeded});
    library.impl("philox_state", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, philox_state));
    whole.release();  // never unloaded
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace flashover::run::cuda
