// Version counters of tensors (c10::VariableVersion), which torch lets nobody compare.
#pragma once
#include <c10/core/TensorImpl.h>

#include <cstring>

namespace flashover::aten {

// Equal for tensors that share their counter; null for inference tensors, which have none. Not to be followed.
inline const void* counter_of(const c10::TensorImpl* tensor) {
  const c10::VariableVersion& version = tensor->version_counter();
  static_assert(sizeof version == sizeof(void*), "VariableVersion is one pointer, to the counter");
  const void* counter;
  std::memcpy(&counter, static_cast<const void*>(&version), sizeof counter);
  return counter;
}

}  // namespace flashover::aten
