// torch.autocast as it is set, without ATen's header for it, which brings every operator of ATen with it.
#pragma once
#include <ATen/core/Tensor.h>

namespace flashover::autocast {

bool is_enabled(at::DeviceType device);
at::ScalarType dtype(at::DeviceType device);
// The operand as autocast hands it to an operator that computes in the device's dtype.
at::Tensor cast(const at::Tensor& operand, at::DeviceType device);

// The cache of casted weights.
bool is_cache_enabled();
void set_cache_enabled(bool enabled);
void clear_cache();

}  // namespace flashover::autocast
