// A storage whose deleter lets the recording go.
#include "run/cuda/pool_outputs.h"

#include <c10/core/InferenceMode.h>

#include <array>
#include <utility>

namespace flashover::run::cuda {
namespace {

struct Owner {
  at::Tensor memory;
  std::shared_ptr<std::atomic<int>> live;
};

void let_go(void* p) {
  auto* owner = static_cast<Owner*>(p);
  const std::shared_ptr<std::atomic<int>> live = std::move(owner->live);
  delete owner;
  live->fetch_sub(1, std::memory_order_release);
}

}  // namespace

at::Tensor pool_output(const at::Tensor& of, const std::shared_ptr<std::atomic<int>>& live) {
  c10::InferenceMode normal(false);
  auto* memory = of.storage().unsafeGetStorageImpl();
  live->fetch_add(1, std::memory_order_relaxed);
  c10::DataPtr pointer(memory->data_ptr().get(), new Owner{of, live}, &let_go, of.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), memory->nbytes(), std::move(pointer), nullptr,
                       /*resizable=*/false);
  const auto key = of.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), of.dtype());
  impl->set_storage_offset(of.storage_offset());
  impl->set_sizes_and_strides(of.sizes(), of.strides());
  return at::Tensor(std::move(impl));
}

bool is_pool_output(c10::TensorImpl* impl) {
  const auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  return storage && storage->data_ptr().get_deleter() == &let_go;
}

std::atomic<int64_t>& PoolReservation::of(int device) {
  static std::array<std::atomic<int64_t>, 64> all{};
  return all[static_cast<size_t>(device) % all.size()];
}

}  // namespace flashover::run::cuda
