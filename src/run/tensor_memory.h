// Tensors as pointers, and pointers as tensors: what a call asks of its inputs.
//
//   In        tensors whose types guards have checked
//   Out       addresses, references
//   Promises  no dispatch, no refcount but borrow()'s; looks at nothing that the guards have answered
//   Declines  nothing
#pragma once
#include <ATen/core/Tensor.h>

namespace flashover::run {

static_assert(sizeof(at::Tensor) == sizeof(c10::TensorImpl*));

inline at::Tensor borrow(c10::TensorImpl* impl) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

inline char* data_of(c10::TensorImpl* impl) {
  const auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (!storage || impl->numel() == 0) return nullptr;
  // Not TensorImpl::data(): that asks a dozen questions which the guards answered.
  return static_cast<char*>(const_cast<void*>(storage->data_ptr().get())) +
         impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
}

// Nothing else has the tensor object or its storage.
inline bool is_unique(const at::Tensor& t) {
  return t.use_count() == 1 && (!t.has_storage() || t.storage().use_count() == 1);
}

}  // namespace flashover::run
