// Registers them with torch's dispatcher: convolutions that do their batch in parts, the generator's state.
#include "run/cuda/operators.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/cudnn_convolution.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

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
    library.def("philox_state(int increment, Device device) -> Tensor", {at::Tag::nondeterministic_seeded});
    library.impl("philox_state", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, philox_state));
    whole.release();  // never unloaded
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace flashover::run::cuda
