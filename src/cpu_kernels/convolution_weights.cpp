// Asks oneDNN for the layout of a weight by laying it out, and tells layouts apart by their bytes.
#include "cpu_kernels/convolution_weights.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "torch/mkldnn.h"

namespace flashover::cpu {
namespace {

// Asking copies the weight twice, so it is done for fewer sizes where the weight is large: then the convolution has
// more than one point, and layouts hardly ever differ.
size_t sizes_to_ask_of(const at::Tensor& weight) {
  constexpr size_t kBytes = size_t{64} << 20, kFewest = 4, kMost = 64;
  return std::clamp(kBytes / std::max<size_t>(weight.nbytes(), 1), kFewest, kMost);
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const int64_t bytes = at::native::nbytes_from_mkldnn(a);
  return bytes == at::native::nbytes_from_mkldnn(b) &&
         std::memcmp(at::native::data_ptr_from_mkldnn(a), at::native::data_ptr_from_mkldnn(b),
                     static_cast<size_t>(bytes)) == 0;
}

// How far apart two images are, by what oneDNN's choice follows: points and batch, in doublings.
int64_t distance(at::IntArrayRef a, at::IntArrayRef b) {
  const auto doublings = [](int64_t n) { return n > 0 ? 63 - __builtin_clzll(static_cast<uint64_t>(n)) : 0; };
  int64_t sum = 0;
  for (size_t d = 0; d < a.size(); ++d) sum += std::abs(doublings(a[d]) - doublings(b[d]));
  return sum;
}

void destroy(void* weights) { delete static_cast<ConvolutionWeights*>(weights); }

}  // namespace

ConvolutionWeights::ConvolutionWeights(const at::Tensor& weight, ConvolutionGeometry geometry, at::IntArrayRef typical)
    : geometry_(std::move(geometry)), most_asked_(sizes_to_ask_of(weight)) {
  layouts_.push_back(laid_for(weight, typical));
  known_.push_back({typical.vec(), 0});
}

at::Tensor ConvolutionWeights::laid_for(const at::Tensor& weight, at::IntArrayRef image) const {
  using Reorder = at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t,
                             at::OptionalIntArrayRef);
  static const auto reorder =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_reorder_convolution_weight", "").typed<Reorder>();
  return reorder.call(weight, geometry_.padding, geometry_.stride, geometry_.dilation, geometry_.groups, image);
}

size_t ConvolutionWeights::layout_like(const at::Tensor& laid) {
  const auto at = std::find_if(layouts_.begin(), layouts_.end(),
                               [&](const at::Tensor& layout) { return same_bytes(layout, laid); });
  if (at == layouts_.end()) return layouts_.push_back(laid), layouts_.size() - 1;
  return static_cast<size_t>(at - layouts_.begin());
}

const ConvolutionWeights::Known* ConvolutionWeights::nearest(at::IntArrayRef image) const {
  const Known* best = nullptr;
  int64_t least = 0;
  for (const Known& k : known_) {
    if (image == at::IntArrayRef(k.image)) return &k;
    const int64_t d = distance(image, k.image);
    if (!best || d < least) best = &k, least = d;
  }
  return best;
}

at::Tensor ConvolutionWeights::suited(at::IntArrayRef image) {
  const std::lock_guard lock(mutex_);
  const Known* known = nearest(image);
  if (image == at::IntArrayRef(known->image) || known_.size() >= most_asked_) return layouts_[known->layout];
  const at::Tensor laid = laid_for(layouts_.front().to_dense(), image);
  known_.push_back({image.vec(), layout_like(laid)});
  return layouts_[known_.back().layout];
}

at::Tensor tensor_of(std::unique_ptr<ConvolutionWeights> weights) {
  at::Tensor none = at::empty({0}, at::TensorOptions().dtype(weights->dtype()));
  c10::DataPtr data(nullptr, weights.release(), &destroy, at::Device(at::kCPU));
  none.unsafeGetTensorImpl()->set_storage_keep_dtype(
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0, std::move(data), nullptr, false));
  return none;
}

ConvolutionWeights& weights_of(const at::Tensor& tensor) {
  auto* weights =
      tensor.has_storage() ? tensor.storage().data_ptr().cast_context<ConvolutionWeights>(&destroy) : nullptr;
  TORCH_CHECK(weights, "convolution_of_any_size: its weights are no result of convolution_weights");
  return *weights;
}

}  // namespace flashover::cpu
