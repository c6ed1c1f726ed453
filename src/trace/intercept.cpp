// Composite operators that read data on their own in C++, caught above autograd before they do.
#include <ATen/core/Tensor.h>
#include <ATen/ops/max_pool1d_with_indices.h>
#include <torch/library.h>

#include "trace/recorder.h"

namespace flashover::trace {
namespace {

// Without gradients ATen runs a kernel of its own over the data.
at::Tensor max_pool1d(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                      at::IntArrayRef dilation, bool ceil_mode) {
  return std::get<0>(at::max_pool1d_with_indices(self, kernel, stride, padding, dilation, ceil_mode));
}

std::vector<at::Tensor> tensor_split(const at::Tensor& self, const at::Tensor& indices, int64_t dim) {
  const TraceImpl* impl = trace_impl(indices);
  if (!impl) impl = trace_impl(self);
  decline_trace(*impl, "data-dependent: aten.tensor_split with a tensor of indices");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, m) {
  m.impl("max_pool1d", max_pool1d);
  m.impl("tensor_split.tensor_indices_or_sections", tensor_split);
}

void link_intercepts() {}  // keeps this file's registrations in a static library

}  // namespace flashover::trace
