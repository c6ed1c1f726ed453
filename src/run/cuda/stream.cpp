// An event where the memory was written, waited for by streams that did not write it.
#include "run/cuda/stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace flashover::run::cuda {

c10::Stream torch_stream(int device) {
  return c10::impl::VirtualGuardImpl(c10::kCUDA)
      .getStream(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
}

ReadyPoint::ReadyPoint(int device) : device_(device), home_(current_stream(device)), event_(c10::kCUDA) {
  event_.record(torch_stream(device));
}

void ReadyPoint::enter(Stream stream, const std::vector<at::Tensor>& tensors) {
  if (stream == home_) return;
  std::lock_guard lock(mutex_);
  if (std::find(entered_.begin(), entered_.end(), stream) != entered_.end()) return;
  const c10::Stream now = torch_stream(device_);
  event_.block(now);
  const c10::impl::VirtualGuardImpl impl(c10::kCUDA);
  for (const at::Tensor& t : tensors)
    if (t.defined() && t.device().is_cuda() && t.has_storage()) impl.recordDataPtrOnStream(t.storage().data_ptr(), now);
  entered_.push_back(stream);
}

}  // namespace flashover::run::cuda
